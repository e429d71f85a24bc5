//! What producers put and were told: the half of the oracle that the stream does not have.

use anabranch::producer::Outcome;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A record: its key, and its number among the key's puts.
pub type RecordName = (String, u64);

/// What is known of one record.
#[derive(Clone, Debug, Default)]
pub struct LedgerEntry {
    /// Every outcome that came; there should be one.
    pub outcomes: Vec<Outcome>,
    /// Whether its producer died, so that no outcome has to come.
    pub orphaned: bool,
}

/// Every record that was accepted. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct PutLedger(Arc<Mutex<BTreeMap<RecordName, LedgerEntry>>>);

impl PutLedger {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<RecordName, LedgerEntry>> {
        // Each change is one assignment, so a panic leaves no half of one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A record was accepted.
    pub fn accepted(&self, name: RecordName) {
        self.entries().insert(name, LedgerEntry::default());
    }

    /// A record has its outcome.
    pub fn settled(&self, name: &RecordName, outcome: Outcome) {
        if let Some(entry) = self.entries().get_mut(name) {
            entry.outcomes.push(outcome);
        }
    }

    /// The producer of these keys is dead.
    pub fn producer_died(&self, prefix: &str) {
        for (_, entry) in self.entries().iter_mut().filter(|(name, _)| name.0.starts_with(prefix)) {
            entry.orphaned = true;
        }
    }

    /// Everything, taken out.
    pub fn take(&self) -> BTreeMap<RecordName, LedgerEntry> {
        std::mem::take(&mut *self.entries())
    }
}
