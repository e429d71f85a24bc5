//! Checkpoints: fenced, and conditional on what they replace.

use super::own_row::OwnRowWrite;
use super::{HeldLease, LeaseHandle};
use crate::lease::coordinator::LeaseContext;
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::StreamApi;
use anabranch_model::lease::{Checkpoint, PendingCheckpoint};
use anabranch_model::position::Position;

/// How a checkpoint ended.
#[derive(Debug)]
#[must_use]
pub enum CheckpointResult {
    /// The row holds it.
    Done,
    /// The lease is lost. Nothing was written, or nobody will ever know.
    Lost,
    /// It lies before the one on the row. Nothing was written.
    BehindCurrent,
    /// The store will not do it, ever.
    Failed(StoreError),
}

impl<S: LeaseStore, A: StreamApi> LeaseHandle<S, A> {
    /// Notes on the row up to where the shard is done, and what is announced beside it.
    ///
    /// A throttled or failing store is asked again until the lease time is over. Wait for one
    /// checkpoint before the next: they are made one by one.
    pub async fn checkpoint(
        &self,
        to: Checkpoint,
        pending: Option<PendingCheckpoint>,
    ) -> CheckpointResult {
        self.held.checkpoint(&self.context, to, pending).await
    }

    /// The same, for what the library knows to be done. If the row does not hold it when the lease
    /// is given back, because this was dropped before the store answered, it is written then.
    pub(crate) async fn checkpoint_progress(&self, to: Checkpoint) -> CheckpointResult {
        self.held.set_unsaved(Some(to.clone()));
        let made = self.held.checkpoint(&self.context, to, None).await;
        self.held.set_unsaved(None);
        made
    }

    /// Notes on a row at LATEST the moment, in milliseconds since 1970, that this stands for: whoever
    /// takes the lease next reads from there.
    pub async fn pin_latest(&self, moment_ms: u64) -> CheckpointResult {
        let moment = Checkpoint::at(Position::AtTimestamp(moment_ms));
        self.checkpoint(moment, self.lease().pending.clone()).await
    }

    /// Notes that so many bytes of the shard were read. The next checkpoint says on the row what
    /// that comes to, so that leases can be levelled by it.
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
                // Where the row does not say so, whoever asked asks again, and is told again.
                OwnRowWrite::Done | OwnRowWrite::Rejected | OwnRowWrite::Failed(_) => break,
                // An earlier checkpoint came late.
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
    /// Writes what is done and may not be on the row yet, before the lease is given back.
    pub(crate) async fn write_unsaved<S: LeaseStore, A>(&self, tools: &LeaseContext<S, A>) {
        if let Some(at) = self.unsaved() {
            // What can't be written comes again.
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
        // A checkpoint that is made anyway says what the shard weighs.
        let rate = self.rate().report(tools.clock.now_ms());
        loop {
            // The moment that LATEST stands for says more, and nothing was done since.
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
