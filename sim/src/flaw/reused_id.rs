//! One worker id for every join: outgoing calls carry the old id, and replies show the id that the
//! worker believes it has.

use anabranch_model::lease::{
    HandOver, Lease, LeaseChange, StoredRow, WorkerChange, WorkerId, WorkerRow, Write, WriteOutcome,
};
use std::collections::BTreeSet;

/// The old id of a host, and the ids that its worker believes it has.
#[derive(Clone, Debug)]
pub(super) struct ReusedWorkerId {
    /// Id that the store sees.
    old: WorkerId,
    /// Ids under which this worker run has joined.
    believed: BTreeSet<WorkerId>,
    /// The last of them.
    now: Option<WorkerId>,
    /// Counter of the row at the last join. The worker believes that it was 0.
    offset: u64,
}

impl ReusedWorkerId {
    pub(super) fn new(name: &str) -> Self {
        let old = WorkerId::of_join(name, 0);
        Self { old, believed: BTreeSet::new(), now: None, offset: 0 }
    }

    /// Returns the id that the store sees.
    pub(super) fn old(&self) -> &WorkerId {
        &self.old
    }

    /// Returns true for an id of this worker run.
    pub(super) fn is_mine(&self, id: &WorkerId) -> bool {
        self.believed.contains(id)
    }

    /// Registers a join under `id`, while the counter of the worker's row is at `offset`.
    pub(super) fn join(&mut self, id: &WorkerId, offset: u64) {
        self.believed.insert(id.clone());
        self.now = Some(id.clone());
        self.offset = offset;
    }

    /// Translates a write for the store.
    pub(super) fn outgoing(&self, write: &Write) -> Write {
        let mut write = write.clone();
        match &mut write {
            Write::Lease { change, .. } => match change {
                LeaseChange::Take { taker: id, .. }
                | LeaseChange::RequestHandOver { taker: id, .. }
                | LeaseChange::WithdrawRequest { taker: id, .. }
                | LeaseChange::Release { owner: id, .. }
                | LeaseChange::Renew { owner: id, .. }
                | LeaseChange::RefuseHandOver { owner: id, .. }
                | LeaseChange::AllowHandOver { owner: id, .. }
                | LeaseChange::HandOver { owner: id, .. }
                | LeaseChange::Checkpoint { owner: id, .. }
                | LeaseChange::End { owner: id, .. } => self.out(id),
                _ => {}
            },
            Write::Worker { id, change, .. } if self.is_mine(id) => {
                self.out(id);
                match change {
                    WorkerChange::Beat { counter }
                    | WorkerChange::SetStreams { counter, .. }
                    | WorkerChange::AnnounceLeaving { counter }
                    | WorkerChange::Fence { counter }
                    | WorkerChange::Leave { counter } => *counter += self.offset,
                    WorkerChange::Join { .. } | WorkerChange::Delete => {}
                }
            }
            Write::Worker { .. } | Write::Stream { .. } => {}
        }
        write
    }

    /// Translates an outcome for the worker.
    pub(super) fn incoming(&self, outcome: WriteOutcome) -> WriteOutcome {
        match outcome {
            WriteOutcome::Done(stored) => WriteOutcome::Done(self.stored(stored)),
            WriteOutcome::Refused { why, now } => {
                WriteOutcome::Refused { why, now: now.map(|now| self.stored(now)) }
            }
            WriteOutcome::Unknown => WriteOutcome::Unknown,
        }
    }

    /// Translates a row for the worker.
    pub(super) fn stored(&self, stored: StoredRow) -> StoredRow {
        match stored {
            StoredRow::Lease(row) => StoredRow::Lease(Box::new(self.lease(*row))),
            StoredRow::Worker(row) => StoredRow::Worker(self.worker(row)),
            other => other,
        }
    }

    /// Translates a lease row for the worker.
    pub(super) fn lease(&self, mut row: Lease) -> Lease {
        if let Some(owner) = &mut row.owner {
            self.back(owner);
        }
        if let HandOver::Requested { taker } = &mut row.hand_over {
            self.back(taker);
        }
        row
    }

    /// Translates a worker row for the worker.
    pub(super) fn worker(&self, mut row: WorkerRow) -> WorkerRow {
        if row.id == self.old {
            row.counter = row.counter.saturating_sub(self.offset);
        }
        self.back(&mut row.id);
        row
    }

    fn out(&self, id: &mut WorkerId) {
        if self.is_mine(id) {
            *id = self.old.clone();
        }
    }

    fn back(&self, id: &mut WorkerId) {
        if let Some(now) = &self.now
            && *id == self.old
        {
            *id = now.clone();
        }
    }
}
