//! Checkpoints: fenced, and conditional on what they replace.

use super::Grip;
use super::held::OwnRow;
use crate::lease::settle::Settled;
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::StreamApi;
use anabranch_model::lease::{
    Checkpoint, Layout, Lease, PendingCheckpoint, Refusal, Stored, Write,
};

/// How a checkpoint ended.
#[derive(Debug)]
#[must_use]
pub enum Checkpointed {
    /// The row holds it.
    Done,
    /// The lease is lost. Nothing was written, or nobody will ever know.
    Lost,
    /// It lies before the one on the row. Nothing was written.
    GoesBack,
    /// The store will not do it, ever.
    Failed(StoreError),
}

/// How a write to the own row ended.
pub(super) enum OwnWrite {
    /// The row holds it.
    Done,
    /// The row is still this worker's, and another write of its own came first.
    Moved,
    /// The lease is lost.
    Lost,
    /// The write itself is wrong.
    Wrong(Refusal),
    /// The store will not do it, ever.
    Failed(StoreError),
}

impl<S: LeaseStore, A: StreamApi> Grip<S, A> {
    /// Notes on the row up to where the shard is done, and what is announced beside it.
    ///
    /// A throttled or failing store is asked again until the lease time is over. Wait for one
    /// checkpoint before the next: they are made one by one.
    pub async fn checkpoint(
        &self,
        to: Checkpoint,
        pending: Option<PendingCheckpoint>,
    ) -> Checkpointed {
        let mut row = self.held.row().await;
        loop {
            if !row.checkpoint.may_become(&to) {
                return Checkpointed::GoesBack;
            }
            let nonce = self.tools.chance.nonce();
            let replaces = row.checkpoint.clone();
            let write = row.hold.checkpoint(replaces, to.clone(), pending.clone(), nonce);
            match self.write_own(&mut row, &write).await {
                OwnWrite::Done => return Checkpointed::Done,
                OwnWrite::Moved => {}
                OwnWrite::Lost => return Checkpointed::Lost,
                OwnWrite::Wrong(_) => return Checkpointed::GoesBack,
                OwnWrite::Failed(error) => return Checkpointed::Failed(error),
            }
        }
    }

    /// Refuses hand-overs on the row, or allows them again.
    pub(super) async fn refuse(&self, refuse: bool) {
        if self.tools.store.layout() == Layout::Kcl {
            return;
        }
        let mut row = self.held.row().await;
        let nonce = self.tools.chance.nonce();
        let write = if refuse { row.hold.refuse(nonce) } else { row.hold.unrefuse(nonce) };
        if let OwnWrite::Done = self.write_own(&mut row, &write).await
            && refuse
        {
            self.held.run_on();
        }
    }

    /// Carries a write to the own row to its end, and takes in what the row says.
    pub(super) async fn write_own(&self, row: &mut OwnRow, write: &Write) -> OwnWrite {
        let (held, clock) = (&self.held, &self.tools.clock);
        if held.is_lost(clock.now_ms()) {
            return OwnWrite::Lost;
        }
        let sent_ms = *row.unresolved_ms.get_or_insert(clock.now_ms());
        let settled = self.tools.settle(write, || held.pulse().over_ms()).await;
        match settled {
            Settled::Applied(Stored::Lease(lease)) => {
                self.take_in(row, &lease, sent_ms);
                OwnWrite::Done
            }
            Settled::Refused { why, now: Stored::Lease(lease) }
                if self.is_still_mine(row, &lease) =>
            {
                let moved = (lease.term, &lease.checkpoint) != (row.hold.term, &row.checkpoint);
                self.take_in(row, &lease, sent_ms);
                if moved { OwnWrite::Moved } else { OwnWrite::Wrong(why) }
            }
            Settled::Failed(error) if !error.is_retryable() => OwnWrite::Failed(error),
            // Refused, or the lease time is over.
            _ => {
                held.lose();
                OwnWrite::Lost
            }
        }
    }

    /// Whether the row is held by this grip. In KCL's layout each write of the owner moves the
    /// counter, so an older one that came late may have moved it.
    fn is_still_mine(&self, row: &OwnRow, lease: &Lease) -> bool {
        match self.tools.store.layout() {
            Layout::Native => row.hold.is_of(lease),
            Layout::Kcl => lease.owner.as_ref() == Some(&row.hold.owner),
        }
    }

    fn take_in(&self, row: &mut OwnRow, lease: &Lease, sent_ms: u64) {
        row.hold.term = lease.term;
        row.checkpoint = lease.checkpoint.clone();
        row.unresolved_ms = None;
        // In KCL's layout every write of the owner is a beat.
        if self.tools.store.layout() == Layout::Kcl {
            self.held.pulse().beat(sent_ms, self.tools.clock.now_ms());
        }
    }
}
