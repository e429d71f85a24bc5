//! The puts of producers and their outcomes: the half of the oracle that the stream does not have.

use anabranch::producer::Outcome;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Identifies a record by its key and its number among the puts of the key.
pub type RecordName = (String, u64);

/// State of one record.
#[derive(Clone, Debug, Default)]
pub struct LedgerEntry {
    /// Outcomes that arrived; there should be exactly one.
    pub outcomes: Vec<Outcome>,
    /// True if its producer crashed, so that no outcome is required.
    pub orphaned: bool,
}

/// Every record that was accepted. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct PutLedger(Arc<Mutex<BTreeMap<RecordName, LedgerEntry>>>);

impl PutLedger {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<RecordName, LedgerEntry>> {
        // Each change is one assignment, so a panic leaves no partial change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an accepted record.
    pub fn accepted(&self, name: RecordName) {
        self.entries().insert(name, LedgerEntry::default());
    }

    /// Adds an outcome of a record.
    pub fn settled(&self, name: &RecordName, outcome: Outcome) {
        if let Some(entry) = self.entries().get_mut(name) {
            entry.outcomes.push(outcome);
        }
    }

    /// Marks the records of a crashed producer, by the prefix of its keys.
    pub fn producer_died(&self, prefix: &str) {
        for (_, entry) in self.entries().iter_mut().filter(|(name, _)| name.0.starts_with(prefix)) {
            entry.orphaned = true;
        }
    }

    /// Removes and returns all entries.
    pub fn take(&self) -> BTreeMap<RecordName, LedgerEntry> {
        std::mem::take(&mut *self.entries())
    }
}
