//! Rows that exist but are unreadable for a while, as if a later version of the library or an
//! operator had written them. Lists and store polls name them; a call for one of them alone fails.

use super::partial_commits::TransactionRow;
use anabranch::lease::{StoreError, StorePoll};
use anabranch_model::lease::{Lease, LeaseListing, UnreadableRow, WorkerRow};
use std::collections::BTreeMap;

/// Reported reason for an unreadable row.
const WHY: &str = "the simulator spoiled it";

/// Unreadable rows, each with the time at which it becomes readable again.
#[derive(Default)]
pub(super) struct UnreadableRows(BTreeMap<TransactionRow, u64>);

impl UnreadableRows {
    pub(super) fn add(&mut self, row: TransactionRow, until_ms: u64) {
        self.0.insert(row, until_ms);
    }

    /// Removes the rows that are readable by now.
    pub(super) fn forget(&mut self, now_ms: u64) {
        self.0.retain(|_, until_ms| now_ms < *until_ms);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn has(&self, row: &TransactionRow) -> bool {
        self.0.contains_key(row)
    }

    /// Moves the unreadable rows of a list to its `unreadable` part.
    pub(super) fn list(&self, mut listing: LeaseListing) -> LeaseListing {
        let is_spoiled = |row: &Lease| self.has(&TransactionRow::Lease(row.key.clone()));
        let (spoiled, rows): (Vec<Lease>, Vec<Lease>) =
            listing.rows.into_iter().partition(is_spoiled);
        listing.rows = rows;
        let name = |row: Lease| UnreadableRow { key: row.key.shard, why: WHY.to_owned() };
        listing.unreadable.extend(spoiled.into_iter().map(name));
        listing
    }

    /// Moves the unreadable worker rows of a store poll to its `unreadable` part.
    pub(super) fn look(&self, mut look: StorePoll) -> StorePoll {
        let is_spoiled = |row: &WorkerRow| self.has(&TransactionRow::Worker(row.id.clone()));
        let (spoiled, workers): (Vec<WorkerRow>, Vec<WorkerRow>) =
            look.workers.into_iter().partition(is_spoiled);
        look.workers = workers;
        let name = |row: WorkerRow| UnreadableRow { key: row.id, why: WHY.to_owned() };
        look.unreadable.extend(spoiled.into_iter().map(name));
        look
    }
}

/// Returns the error of a call for an unreadable row.
pub(super) fn unreadable(row: &TransactionRow) -> StoreError {
    let row = match row {
        TransactionRow::Lease(key) => key.to_string(),
        TransactionRow::Worker(id) => id.to_string(),
    };
    StoreError::UnreadableRow { store: "sim".to_owned(), row, detail: WHY.to_owned() }
}
