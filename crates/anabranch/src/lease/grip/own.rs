//! Writes to the row of a lease that this worker holds.

use super::held::{Held, OwnRow};
use crate::lease::coordinator::Tools;
use crate::lease::settle::Settled;
use crate::lease::{LeaseStore, StoreError};
use anabranch_model::lease::{HandOver, Layout, Lease, Stored, Write};

/// How a write to the own row ended.
#[derive(Debug)]
pub(crate) enum OwnWrite {
    /// The row holds it.
    Done,
    /// The row is still this worker's, and another write of its own came first.
    Moved,
    /// The lease is lost.
    Lost,
    /// The row is as it was known, and the write breaks a rule.
    Wrong,
    /// The store will not do it, ever.
    Failed(StoreError),
}

impl Held {
    /// Carries a write to the own row to its end, and takes in what the row says.
    pub(crate) async fn write_own<S: LeaseStore, A>(
        &self,
        tools: &Tools<S, A>,
        row: &mut OwnRow,
        write: &Write,
    ) -> OwnWrite {
        let layout = tools.store.layout();
        if self.is_lost(tools.clock.now_ms()) {
            return OwnWrite::Lost;
        }
        let sent_ms = *row.unresolved_ms.get_or_insert(tools.clock.now_ms());
        match tools.settle(write, || self.pulse().over_ms()).await {
            Settled::Applied(Stored::Lease(lease)) => {
                self.take_in(tools, row, &lease, sent_ms);
                OwnWrite::Done
            }
            Settled::Refused { now: Stored::Lease(lease), .. }
                if is_still_mine(layout, row, &lease) =>
            {
                let moved = (lease.term, &lease.checkpoint) != (row.hold.term, &row.checkpoint);
                self.take_in(tools, row, &lease, sent_ms);
                if moved { OwnWrite::Moved } else { OwnWrite::Wrong }
            }
            Settled::Failed(error) if !error.is_retryable() => OwnWrite::Failed(error),
            // Refused, or the lease time is over.
            _ => {
                self.lose();
                OwnWrite::Lost
            }
        }
    }

    /// Moves the lease's own heart (KCL's layout). A write that is under way is a beat too.
    pub(crate) async fn renew<S: LeaseStore, A>(&self, tools: &Tools<S, A>) {
        if let Some(mut row) = self.row_if_idle() {
            let write = row.hold.renew(tools.chance.nonce());
            if let OwnWrite::Failed(error) = self.write_own(tools, &mut row, &write).await {
                tools.trouble("renew", &error);
            }
        }
    }

    fn take_in<S: LeaseStore, A>(
        &self,
        tools: &Tools<S, A>,
        row: &mut OwnRow,
        lease: &Lease,
        sent_ms: u64,
    ) {
        row.hold.term = lease.term;
        self.hear(row, &lease.checkpoint);
        row.unresolved_ms = None;
        // A look may be some way off, and a checkpoint or a renewal shows the name too.
        if let HandOver::Named { taker } = &lease.hand_over
            && taker != self.owner()
            && !self.is_drained()
        {
            self.note_named(taker);
        }
        // In KCL's layout every write of the owner is a beat.
        if tools.store.layout() == Layout::Kcl && !self.pulse().beat(sent_ms, tools.clock.now_ms())
        {
            self.lose();
        }
    }
}

/// Whether the row is still held. In KCL's layout each write of the owner moves the counter, so an
/// older one that came late may have moved it.
fn is_still_mine(layout: Layout, row: &OwnRow, lease: &Lease) -> bool {
    match layout {
        Layout::Native => row.hold.is_of(lease),
        Layout::Kcl => lease.owner.as_ref() == Some(&row.hold.owner),
    }
}
