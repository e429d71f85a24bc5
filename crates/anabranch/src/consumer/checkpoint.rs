//! Checkpoints of a shard: coalesced, one at a time, never past what is done.

use super::vitals::Vitals;
use crate::event::{Events, ShardEvent};
use crate::lease::{Checkpointed, Grip, LeaseStore};
use crate::stream::api::StreamApi;
use anabranch_model::lease::{Checkpoint, LeaseKey};
use std::sync::Arc;

/// The checkpoints of a shard.
pub(super) struct Checkpoints {
    /// Which shard.
    shard: Arc<LeaseKey>,
    /// What the row holds.
    written: Checkpoint,
    /// The signs of life of the shard.
    vitals: Arc<Vitals>,
    /// Who wants to know.
    events: Events,
}

/// Whether the lease is still this worker's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tenancy {
    /// It is.
    Kept,
    /// It is not.
    Lost,
}

impl Checkpoints {
    /// The row holds `written`.
    pub(super) fn new(
        shard: Arc<LeaseKey>,
        written: Checkpoint,
        vitals: Arc<Vitals>,
        events: Events,
    ) -> Self {
        Self { shard, written, vitals, events }
    }

    /// Writes down up to where the shard is done, if that has moved.
    pub(super) async fn note<S: LeaseStore, A: StreamApi>(
        &mut self,
        grip: &Grip<S, A>,
        at: Checkpoint,
    ) -> Tenancy {
        if at == self.written || (at.is_level() && self.written == at.lowest()) {
            return Tenancy::Kept;
        }
        self.vitals.writing();
        let shard = Arc::clone(&self.shard);
        let error = match grip.checkpoint(at.clone(), None).await {
            Checkpointed::Done => {
                self.vitals.written(&at);
                self.events.emit(ShardEvent::Checkpointed { shard, at: at.clone() });
                self.written = at;
                return Tenancy::Kept;
            }
            Checkpointed::Lost => return Tenancy::Lost,
            Checkpointed::GoesBack => format!("{at} lies before what the row holds"),
            Checkpointed::Failed(error) => error.to_string(),
        };
        // What was done since is done again after a change of owner. The next one may pass.
        self.events.emit(ShardEvent::CheckpointFailed { shard, error });
        Tenancy::Kept
    }
}
