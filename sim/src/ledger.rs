//! What producers put and were told: the half of the oracle that the stream does not have.

use anabranch::producer::Outcome;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A record: its key, and its number among the key's puts.
pub type Name = (String, u64);

/// What is known of one record.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// Every outcome that came; there should be one.
    pub outcomes: Vec<Outcome>,
    /// Whether its producer died, so that no outcome has to come.
    pub orphaned: bool,
}

/// Every record that was accepted. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<BTreeMap<Name, Entry>>>);

impl Ledger {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<Name, Entry>> {
        // Each change is one assignment, so a panic leaves no half of one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A record was accepted.
    pub fn accepted(&self, name: Name) {
        self.entries().insert(name, Entry::default());
    }

    /// A record has its outcome.
    pub fn settled(&self, name: &Name, outcome: Outcome) {
        if let Some(entry) = self.entries().get_mut(name) {
            entry.outcomes.push(outcome);
        }
    }

    /// The producer of these keys is dead.
    pub fn orphan(&self, prefix: &str) {
        for (_, entry) in self.entries().iter_mut().filter(|(name, _)| name.0.starts_with(prefix)) {
            entry.orphaned = true;
        }
    }

    /// Everything, taken out.
    pub fn take(&self) -> BTreeMap<Name, Entry> {
        std::mem::take(&mut *self.entries())
    }
}
