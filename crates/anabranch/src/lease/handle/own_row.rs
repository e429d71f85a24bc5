//! Writes to the row of a lease that this worker holds.

use super::held::{HeldLease, HeldRow};
use crate::lease::coordinator::LeaseContext;
use crate::lease::write_retry::WriteResult;
use crate::lease::{LeaseStore, StoreError};
use anabranch_model::lease::{HandOver, Layout, Lease, StoredRow, Write};

/// How a write to the own row ended.
#[derive(Debug)]
pub(crate) enum OwnRowWrite {
    /// The row holds it.
    Done,
    /// The row is still this worker's, and another write of its own came first.
    CheckpointMoved,
    /// The lease is lost.
    Lost,
    /// The row is as it was known, and the write breaks a rule.
    Rejected,
    /// The store will not do it, ever.
    Failed(StoreError),
}

impl HeldLease {
    /// Carries a write to the own row to its end, and takes in what the row says.
    pub(crate) async fn write_row<S: LeaseStore, A>(
        &self,
        tools: &LeaseContext<S, A>,
        row: &mut HeldRow,
        write: &Write,
    ) -> OwnRowWrite {
        let layout = tools.store.layout();
        if self.is_lost(tools.clock.now_ms()) {
            return OwnRowWrite::Lost;
        }
        let sent_ms = *row.unresolved_ms.get_or_insert(tools.clock.now_ms());
        match tools.write(write, || self.heartbeat().expires_at_ms()).await {
            WriteResult::Applied(StoredRow::Lease(lease)) => {
                self.apply_row(tools, row, &lease, sent_ms);
                OwnRowWrite::Done
            }
            WriteResult::Refused { now: StoredRow::Lease(lease), .. }
                if is_still_mine(layout, row, &lease) =>
            {
                let moved = (lease.term, &lease.checkpoint) != (row.hold.term, &row.checkpoint);
                self.apply_row(tools, row, &lease, sent_ms);
                if moved { OwnRowWrite::CheckpointMoved } else { OwnRowWrite::Rejected }
            }
            WriteResult::Failed(error) if !error.is_retryable() => OwnRowWrite::Failed(error),
            // Refused, or the lease time is over.
            _ => {
                self.mark_lost();
                OwnRowWrite::Lost
            }
        }
    }

    /// Moves the lease's own heart (KCL's layout). A write that is under way is a beat too.
    pub(crate) async fn renew<S: LeaseStore, A>(&self, tools: &LeaseContext<S, A>) {
        if let Some(mut row) = self.row_if_idle() {
            let write = row.hold.renew(tools.rng.nonce());
            if let OwnRowWrite::Failed(error) = self.write_row(tools, &mut row, &write).await {
                tools.emit_store_failure("renew", &error);
            }
        }
    }

    fn apply_row<S: LeaseStore, A>(
        &self,
        tools: &LeaseContext<S, A>,
        row: &mut HeldRow,
        lease: &Lease,
        sent_ms: u64,
    ) {
        row.hold.term = lease.term;
        self.set_known_checkpoint(row, &lease.checkpoint);
        row.unresolved_ms = None;
        // A look may be some way off, and a checkpoint or a renewal shows the name too.
        if let HandOver::Requested { taker } = &lease.hand_over
            && taker != self.owner()
            && !self.is_draining()
        {
            self.note_requester(taker);
        }
        // In KCL's layout every write of the owner is a beat.
        if tools.store.layout() == Layout::Kcl
            && !self.heartbeat().record_beat(sent_ms, tools.clock.now_ms())
        {
            self.mark_lost();
        }
    }
}

/// Whether the row is still held. In KCL's layout each write of the owner moves the counter, so an
/// older one that came late may have moved it.
fn is_still_mine(layout: Layout, row: &HeldRow, lease: &Lease) -> bool {
    match layout {
        Layout::Native => row.hold.is_of(lease),
        Layout::Kcl => lease.owner.as_ref() == Some(&row.hold.owner),
    }
}
