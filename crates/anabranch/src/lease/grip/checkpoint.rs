//! Checkpoints: fenced, and conditional on what they replace.

use super::own::OwnWrite;
use super::{Grip, Held};
use crate::lease::coordinator::Tools;
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::StreamApi;
use anabranch_model::lease::{Checkpoint, PendingCheckpoint};
use anabranch_model::position::Position;

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
        self.held.checkpoint(&self.tools, to, pending).await
    }

    /// The same, for what the library knows to be done. If the row does not hold it when the lease
    /// is given back, because this was dropped before the store answered, it is written then.
    pub(crate) async fn checkpoint_done(&self, to: Checkpoint) -> Checkpointed {
        self.held.set_unwritten(Some(to.clone()));
        let made = self.held.checkpoint(&self.tools, to, None).await;
        self.held.set_unwritten(None);
        made
    }

    /// Notes on a row at LATEST the moment, in milliseconds since 1970, that this stands for: whoever
    /// takes the lease next reads from there.
    pub async fn fix_latest(&self, moment_ms: u64) -> Checkpointed {
        let moment = Checkpoint::at(Position::AtTimestamp(moment_ms));
        self.checkpoint(moment, self.lease().pending.clone()).await
    }

    /// Notes that so many bytes of the shard were read. The next checkpoint says on the row what
    /// that comes to, so that leases can be levelled by it.
    pub fn note_read(&self, bytes: u64) {
        self.held.rate().read(bytes);
    }

    /// Refuses hand-overs on the row, or allows them again.
    pub(super) async fn refuse(&self, refuse: bool) {
        let mut row = self.held.row().await;
        loop {
            let nonce = self.tools.chance.nonce();
            let write = if refuse { row.hold.refuse(nonce) } else { row.hold.unrefuse(nonce) };
            match self.held.write_own(&self.tools, &mut row, &write).await {
                // Where the row does not say so, whoever asked asks again, and is told again.
                OwnWrite::Done | OwnWrite::Wrong | OwnWrite::Failed(_) => break,
                // An earlier checkpoint came late.
                OwnWrite::Moved => {}
                OwnWrite::Lost => return,
            }
        }
        if refuse {
            self.held.run_on();
        }
    }
}

impl Held {
    /// Writes what is done and may not be on the row yet, before the lease is given back.
    pub(crate) async fn write_unwritten<S: LeaseStore, A>(&self, tools: &Tools<S, A>) {
        if let Some(at) = self.unwritten() {
            // What can't be written comes again.
            let _ = self.checkpoint(tools, at, None).await;
        }
    }

    async fn checkpoint<S: LeaseStore, A>(
        &self,
        tools: &Tools<S, A>,
        to: Checkpoint,
        pending: Option<PendingCheckpoint>,
    ) -> Checkpointed {
        let mut row = self.row().await;
        // A checkpoint that is made anyway says what the shard weighs.
        let rate = self.rate().told(tools.clock.now_ms());
        loop {
            // The moment that LATEST stands for says more, and nothing was done since.
            let to = if to == Position::Latest && is_moment(&row.checkpoint) {
                row.checkpoint.clone()
            } else {
                to.clone()
            };
            if !row.checkpoint.may_become(&to) {
                return Checkpointed::GoesBack;
            }
            let nonce = tools.chance.nonce();
            let replaces = row.checkpoint.clone();
            let pending = pending.clone();
            let write = row.hold.checkpoint_at_rate(replaces, to, pending, rate, nonce);
            match self.write_own(tools, &mut row, &write).await {
                OwnWrite::Done => return Checkpointed::Done,
                OwnWrite::Moved => {}
                OwnWrite::Lost => return Checkpointed::Lost,
                OwnWrite::Wrong => return Checkpointed::GoesBack,
                OwnWrite::Failed(error) => return Checkpointed::Failed(error),
            }
        }
    }
}

fn is_moment(checkpoint: &Checkpoint) -> bool {
    matches!(checkpoint.lowest(), Position::AtTimestamp(_))
}
