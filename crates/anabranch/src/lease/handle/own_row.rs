//! Writes to the row of a lease that this worker holds.

use super::held::{HeldLease, HeldRow};
use crate::lease::coordinator::LeaseContext;
use crate::lease::write_retry::WriteResult;
use crate::lease::{LeaseStore, StoreError};
use anabranch_model::lease::{HandOver, Layout, Lease, StoredRow, Write};

/// The result of a write to the worker's own row.
#[derive(Debug)]
pub(crate) enum OwnRowWrite {
    /// The row holds the write.
    Done,
    /// The row still belongs to this worker, and another of its writes was applied first.
    CheckpointMoved,
    /// The lease is lost.
    Lost,
    /// The row is unchanged, and the write breaks a rule.
    Rejected,
    /// The store rejected the write permanently.
    Failed(StoreError),
}

impl HeldLease {
    /// Retries a write to the own row until its result is known, and takes in the returned row.
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

    /// Renews the lease (KCL's layout). Skips it while a write is in progress, which renews the
    /// lease too.
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
        // The next poll may be far off, and a checkpoint or a renewal shows the request too.
        if let HandOver::Requested { taker } = &lease.hand_over
            && taker != self.owner()
            && !self.is_draining()
        {
            self.note_requester(taker);
        }
        // In KCL's layout every write of the owner renews the lease.
        if tools.store.layout() == Layout::Kcl
            && !self.heartbeat().record_beat(sent_ms, tools.clock.now_ms())
        {
            self.mark_lost();
        }
    }
}

/// Returns true if the row is still held. In KCL's layout each write of the owner moves the
/// counter, so an older one that was applied late may have moved it.
fn is_still_mine(layout: Layout, row: &HeldRow, lease: &Lease) -> bool {
    match layout {
        Layout::Native => row.hold.is_of(lease),
        Layout::Kcl => lease.owner.as_ref() == Some(&row.hold.owner),
    }
}
