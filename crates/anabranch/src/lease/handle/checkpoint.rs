//! Checkpoints: fenced writes, conditional on the checkpoint that they replace.

use super::own_row::OwnRowWrite;
use super::{HeldLease, LeaseHandle};
use crate::lease::coordinator::LeaseContext;
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::StreamApi;
use anabranch_model::lease::{Checkpoint, PendingCheckpoint};
use anabranch_model::position::Position;

/// The result of a checkpoint.
#[derive(Debug)]
#[must_use]
pub enum CheckpointResult {
    /// The row holds the checkpoint.
    Done,
    /// The lease is lost. The checkpoint was not written, or its result can't be known.
    Lost,
    /// The checkpoint lies before the one on the row. Nothing was written.
    BehindCurrent,
    /// The store rejected the write permanently.
    Failed(StoreError),
}

impl<S: LeaseStore, A: StreamApi> LeaseHandle<S, A> {
    /// Writes the position up to which the shard is done, with an optional pending checkpoint.
    ///
    /// Retries a throttled or failing store until the lease expires. Checkpoints are written one at
    /// a time: wait for one before the next.
    pub async fn checkpoint(
        &self,
        to: Checkpoint,
        pending: Option<PendingCheckpoint>,
    ) -> CheckpointResult {
        self.held.checkpoint(&self.context, to, pending).await
    }

    /// Does the same for progress that the library tracks. If this future is dropped before the
    /// store answers, the checkpoint is written when the lease is released.
    pub(crate) async fn checkpoint_progress(&self, to: Checkpoint) -> CheckpointResult {
        self.held.set_unsaved(Some(to.clone()));
        let made = self.held.checkpoint(&self.context, to, None).await;
        self.held.set_unsaved(None);
        made
    }

    /// Replaces LATEST on the row by the moment that it stands for, in milliseconds since 1970. The
    /// next owner reads from there.
    pub async fn pin_latest(&self, moment_ms: u64) -> CheckpointResult {
        let moment = Checkpoint::at(Position::AtTimestamp(moment_ms));
        self.checkpoint(moment, self.lease().pending.clone()).await
    }

    /// Counts bytes that were read from the shard. The next checkpoint writes the resulting rate to
    /// the row, and the planner balances leases by it.
    pub fn add_read_bytes(&self, bytes: u64) {
        self.held.rate().read(bytes);
    }

    /// Refuses hand-overs on the row, or allows them again.
    pub(in crate::lease) async fn set_hand_over_refused(&self, refuse: bool) {
        let mut row = self.held.row().await;
        loop {
            let nonce = self.context.rng.nonce();
            let write =
                if refuse { row.hold.refuse(nonce) } else { row.hold.allow_hand_over(nonce) };
            match self.held.write_row(&self.context, &mut row, &write).await {
                // If the row does not hold the refusal, the other worker asks again and is refused
                // again.
                OwnRowWrite::Done | OwnRowWrite::Rejected | OwnRowWrite::Failed(_) => break,
                // An earlier checkpoint was applied late.
                OwnRowWrite::CheckpointMoved => {}
                OwnRowWrite::Lost => return,
            }
        }
        if refuse {
            self.held.cancel_hand_over();
        }
    }
}

impl HeldLease {
    /// Writes progress that may not be on the row yet, before the lease is released.
    pub(crate) async fn write_unsaved<S: LeaseStore, A>(&self, tools: &LeaseContext<S, A>) {
        if let Some(at) = self.unsaved() {
            // Records behind a failed checkpoint are redelivered.
            let _ = self.checkpoint(tools, at, None).await;
        }
    }

    async fn checkpoint<S: LeaseStore, A>(
        &self,
        tools: &LeaseContext<S, A>,
        to: Checkpoint,
        pending: Option<PendingCheckpoint>,
    ) -> CheckpointResult {
        let mut row = self.row().await;
        // The read rate is only written along with a checkpoint.
        let rate = self.rate().report(tools.clock.now_ms());
        loop {
            // The moment that LATEST stands for is more precise, and nothing was done since.
            let to = if to == Position::Latest && is_moment(&row.checkpoint) {
                row.checkpoint.clone()
            } else {
                to.clone()
            };
            if !row.checkpoint.may_become(&to) {
                return CheckpointResult::BehindCurrent;
            }
            let nonce = tools.rng.nonce();
            let replaces = row.checkpoint.clone();
            let pending = pending.clone();
            let write = row.hold.checkpoint_at_rate(replaces, to, pending, rate, nonce);
            match self.write_row(tools, &mut row, &write).await {
                OwnRowWrite::Done => return CheckpointResult::Done,
                OwnRowWrite::CheckpointMoved => {}
                OwnRowWrite::Lost => return CheckpointResult::Lost,
                OwnRowWrite::Rejected => return CheckpointResult::BehindCurrent,
                OwnRowWrite::Failed(error) => return CheckpointResult::Failed(error),
            }
        }
    }
}

fn is_moment(checkpoint: &Checkpoint) -> bool {
    matches!(checkpoint.lowest(), Position::AtTimestamp(_))
}
