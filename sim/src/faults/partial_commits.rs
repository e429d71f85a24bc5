//! Transactions that become visible row by row, as on DynamoDB. A query is not isolated from a
//! transaction on another partition. It can show the application's new version with the old row, or
//! the new row with the old version. The reply arrives once everything is visible. Until then,
//! writes to the same row are refused.

use anabranch::lease::StorePoll;
use anabranch_model::lease::{Lease, LeaseKey, LeaseListing, WorkerId, WorkerRow, Write};

/// A transaction that becomes visible in two steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialCommit {
    /// Duration for which only one part is visible, in milliseconds.
    pub(super) for_ms: u64,
    /// True if the row becomes visible last; otherwise the version does.
    pub(super) row_is_late: bool,
}

/// A part of a transaction that is not visible yet.
#[derive(Clone, Debug)]
pub(super) struct CommitPart {
    /// Row that the transaction changes.
    pub(super) of: TransactionRow,
    /// Previous state of the row, if that is still shown. `None`: the previous version is shown.
    pub(super) shown: Option<RowBefore>,
}

/// Row that a transaction changes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum TransactionRow {
    Lease(LeaseKey),
    Worker(WorkerId),
}

/// State of a row before a transaction.
#[derive(Clone, Debug)]
pub(super) enum RowBefore {
    Lease(Option<Box<Lease>>),
    Worker(Option<Box<WorkerRow>>),
}

impl TransactionRow {
    /// Returns the row that a write changes, if it is a lease or a worker row.
    pub(super) fn of(write: &Write) -> Option<Self> {
        match write {
            Write::Lease { key, .. } => Some(Self::Lease(key.clone())),
            Write::Worker { id, .. } => Some(Self::Worker(id.clone())),
            Write::Stream { .. } => None,
        }
    }
}

/// Parts of transactions that are not visible yet, each with the time at which it becomes visible.
#[derive(Default)]
pub(super) struct PartialCommits(Vec<(u64, CommitPart)>);

impl PartialCommits {
    pub(super) fn add(&mut self, until_ms: u64, part: CommitPart) {
        self.0.push((until_ms, part));
    }

    /// Removes the parts that are visible by now.
    pub(super) fn forget(&mut self, now_ms: u64) {
        self.0.retain(|(until_ms, _)| now_ms < *until_ms);
    }

    /// Returns true while a transaction on the row is in progress.
    pub(super) fn has(&self, row: &TransactionRow) -> bool {
        self.0.iter().any(|(_, part)| part.of == *row)
    }

    /// Returns the visible state of a store poll.
    pub(super) fn look(&self, mut look: StorePoll) -> StorePoll {
        for (_, part) in &self.0 {
            match &part.shown {
                None => look.version = look.version.map(|version| version - 1),
                Some(RowBefore::Worker(before)) => {
                    let TransactionRow::Worker(id) = &part.of else { continue };
                    look.workers.retain(|worker| worker.id != *id);
                    look.workers.extend(before.as_deref().cloned());
                    look.workers.sort_by(|one, other| one.id.cmp(&other.id));
                }
                Some(RowBefore::Lease(_)) => {}
            }
        }
        look
    }

    /// Returns the visible state of a list of leases.
    pub(super) fn list(&self, stream: &str, mut listing: LeaseListing) -> LeaseListing {
        let rows = &mut listing.rows;
        for (_, part) in &self.0 {
            let (TransactionRow::Lease(key), Some(RowBefore::Lease(before))) =
                (&part.of, &part.shown)
            else {
                continue;
            };
            if key.stream.as_str() == stream {
                rows.retain(|row| row.key != *key);
                rows.extend(before.as_deref().cloned());
                rows.sort_by(|one, other| one.key.cmp(&other.key));
            }
        }
        listing
    }

    /// Returns the visible state of a lease.
    pub(super) fn lease(&self, key: &LeaseKey, row: Option<Lease>) -> Option<Lease> {
        let same = |part: &&CommitPart| matches!(&part.of, TransactionRow::Lease(of) if of == key);
        match self.0.iter().map(|(_, part)| part).find(same).map(|part| &part.shown) {
            Some(Some(RowBefore::Lease(before))) => before.as_deref().cloned(),
            _ => row,
        }
    }

    /// Returns the visible state of a worker row.
    pub(super) fn worker(&self, id: &WorkerId, row: Option<WorkerRow>) -> Option<WorkerRow> {
        let same = |part: &&CommitPart| matches!(&part.of, TransactionRow::Worker(of) if of == id);
        match self.0.iter().map(|(_, part)| part).find(same).map(|part| &part.shown) {
            Some(Some(RowBefore::Worker(before))) => before.as_deref().cloned(),
            _ => row,
        }
    }
}
