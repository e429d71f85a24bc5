//! Scans of KCL's table that show rows of recent moments, each of its own, as an eventually
//! consistent DynamoDB scan does.

use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Lease, LeaseKey};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum age of a row, in milliseconds.
pub(super) const OLD_MS: u64 = 1_000;

/// States of rows before their recent changes.
#[derive(Default)]
pub(super) struct RowHistory(Vec<PastChange>);

struct PastChange {
    at_ms: u64,
    key: LeaseKey,
    before: Option<Box<Lease>>,
}

impl RowHistory {
    /// Records the state of a row before a change.
    pub(super) fn changes(&mut self, now_ms: u64, key: LeaseKey, before: Option<Box<Lease>>) {
        self.0.retain(|change| now_ms < change.at_ms + OLD_MS);
        self.0.push(PastChange { at_ms: now_ms, key, before });
    }

    /// Returns the rows of a stream, each as it was `age_ms()` milliseconds ago.
    pub(super) fn scan(
        &self,
        now_ms: u64,
        stream: &StreamName,
        rows: Vec<Lease>,
        mut age_ms: impl FnMut() -> u64,
    ) -> Vec<Lease> {
        let mut rows: BTreeMap<LeaseKey, Lease> =
            rows.into_iter().map(|row| (row.key.clone(), row)).collect();
        let changed = self.0.iter().map(|change| &change.key).filter(|key| key.stream == *stream);
        for key in changed.collect::<BTreeSet<_>>() {
            let then_ms = now_ms.saturating_sub(age_ms());
            let later = |change: &&PastChange| change.key == *key && change.at_ms > then_ms;
            match self.0.iter().find(later).map(|change| change.before.as_deref()) {
                Some(Some(before)) => drop(rows.insert(key.clone(), before.clone())),
                Some(None) => drop(rows.remove(key)),
                None => {}
            }
        }
        rows.into_values().collect()
    }
}
