//! Rows that are there and can't be read for a while, as if a later version of the library or an
//! operator had written them. Lists and looks name them; a call for one of them alone fails.

use super::partial_commits::TransactionRow;
use anabranch::lease::{StoreError, StorePoll};
use anabranch_model::lease::{Lease, LeaseListing, UnreadableRow, WorkerRow};
use std::collections::BTreeMap;

/// What is wrong with such a row.
const WHY: &str = "the simulator spoiled it";

/// The rows that can't be read, and until when.
#[derive(Default)]
pub(super) struct UnreadableRows(BTreeMap<TransactionRow, u64>);

impl UnreadableRows {
    pub(super) fn add(&mut self, row: TransactionRow, until_ms: u64) {
        self.0.insert(row, until_ms);
    }

    /// Forgets those that can be read by now.
    pub(super) fn forget(&mut self, now_ms: u64) {
        self.0.retain(|_, until_ms| now_ms < *until_ms);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn has(&self, row: &TransactionRow) -> bool {
        self.0.contains_key(row)
    }

    /// A list as it can be read.
    pub(super) fn list(&self, mut listing: LeaseListing) -> LeaseListing {
        let is_spoiled = |row: &Lease| self.has(&TransactionRow::Lease(row.key.clone()));
        let (spoiled, rows): (Vec<Lease>, Vec<Lease>) =
            listing.rows.into_iter().partition(is_spoiled);
        listing.rows = rows;
        let name = |row: Lease| UnreadableRow { key: row.key.shard, why: WHY.to_owned() };
        listing.unreadable.extend(spoiled.into_iter().map(name));
        listing
    }

    /// A look as it can be read.
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

/// The error of a call for a row that can't be read.
pub(super) fn unreadable(row: &TransactionRow) -> StoreError {
    let row = match row {
        TransactionRow::Lease(key) => key.to_string(),
        TransactionRow::Worker(id) => id.to_string(),
    };
    StoreError::UnreadableRow { store: "sim".to_owned(), row, detail: WHY.to_owned() }
}
