//! Transactions that become visible row by row, as on DynamoDB: a query is not isolated from a
//! transaction on another partition, so it can show the application's new version with the old row,
//! or the new row with the old version. The reply comes when all of it is visible, and writes to the
//! same row are turned away until then.

use anabranch::lease::StorePoll;
use anabranch_model::lease::{Lease, LeaseKey, LeaseListing, WorkerId, WorkerRow, Write};

/// A transaction that takes its time.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialCommit {
    /// For how long only a part of it is visible.
    pub(super) for_ms: u64,
    /// Whether the row is what comes late. Otherwise it is the version.
    pub(super) row_is_late: bool,
}

/// A part of a transaction that is not visible yet.
#[derive(Clone, Debug)]
pub(super) struct CommitPart {
    /// Which row the transaction changes.
    pub(super) of: TransactionRow,
    /// The row as it was before, if that is what is still shown.
    pub(super) shown: Option<RowBefore>,
}

/// Which row a transaction changes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum TransactionRow {
    Lease(LeaseKey),
    Worker(WorkerId),
}

/// A row before a transaction.
#[derive(Clone, Debug)]
pub(super) enum RowBefore {
    Lease(Option<Box<Lease>>),
    Worker(Option<Box<WorkerRow>>),
}

impl TransactionRow {
    /// The row that a write is for, if it is a lease's or a worker's.
    pub(super) fn of(write: &Write) -> Option<Self> {
        match write {
            Write::Lease { key, .. } => Some(Self::Lease(key.clone())),
            Write::Worker { id, .. } => Some(Self::Worker(id.clone())),
            Write::Stream { .. } => None,
        }
    }
}

/// The parts of transactions that are not visible yet, and until when.
#[derive(Default)]
pub(super) struct PartialCommits(Vec<(u64, CommitPart)>);

impl PartialCommits {
    pub(super) fn add(&mut self, until_ms: u64, part: CommitPart) {
        self.0.push((until_ms, part));
    }

    /// Forgets those that are visible by now.
    pub(super) fn forget(&mut self, now_ms: u64) {
        self.0.retain(|(until_ms, _)| now_ms < *until_ms);
    }

    /// Whether a transaction on the row is under way.
    pub(super) fn has(&self, row: &TransactionRow) -> bool {
        self.0.iter().any(|(_, part)| part.of == *row)
    }

    /// A look as it is visible.
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

    /// A list of leases as it is visible.
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

    /// A lease as it is visible.
    pub(super) fn lease(&self, key: &LeaseKey, row: Option<Lease>) -> Option<Lease> {
        let same = |part: &&CommitPart| matches!(&part.of, TransactionRow::Lease(of) if of == key);
        match self.0.iter().map(|(_, part)| part).find(same).map(|part| &part.shown) {
            Some(Some(RowBefore::Lease(before))) => before.as_deref().cloned(),
            _ => row,
        }
    }

    /// A worker as it is visible.
    pub(super) fn worker(&self, id: &WorkerId, row: Option<WorkerRow>) -> Option<WorkerRow> {
        let same = |part: &&CommitPart| matches!(&part.of, TransactionRow::Worker(of) if of == id);
        match self.0.iter().map(|(_, part)| part).find(same).map(|part| &part.shown) {
            Some(Some(RowBefore::Worker(before))) => before.as_deref().cloned(),
            _ => row,
        }
    }
}
