//! What a worker has in its hand while it reads a shard.
//!
//! ```text
//! Coordinator ── Grip ──► whoever runs the shard
//!                 │  may_deliver      in the same poll as the handler's call
//!                 │  asked_to_stop    Drain { deadline, why } | Lost
//!                 │  checkpoint, end, gone        fenced writes
//!                 ▼
//!               finish(How)           the coordinator passes the lease on or gives it back
//! ```

mod held;
mod own_row;
mod checkpoint;
mod shard_end;
mod missing_shard;

pub use checkpoint::CheckpointResult;
pub(crate) use held::{HandleState, HeldLease};
pub use missing_shard::MissingShardResult;
pub use shard_end::ShardEndResult;

use super::LeaseStore;
use super::coordinator::LeaseContext;
use crate::stream::api::StreamApi;
use anabranch_model::lease::{Lease, LeaseKey, WorkerId};
use std::fmt;
use std::sync::Arc;

/// The right to read one shard, from the moment that its gate is open until [`LeaseHandle::finish`].
///
/// Nobody else delivers the shard's records while [`LeaseHandle::may_deliver`] says yes. A grip that is
/// dropped counts as [`FinishReason::Failed`].
pub struct LeaseHandle<S: LeaseStore, A: StreamApi> {
    /// What the coordinator knows of it too.
    held: Arc<HeldLease>,
    /// What it works with.
    context: Arc<LeaseContext<S, A>>,
}

/// Why whoever runs a shard is to stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// Finish what was begun, checkpoint, and [`LeaseHandle::finish`] with [`FinishReason::Drained`]. Still the
    /// owner until then.
    Drain {
        /// By the worker's clock: at this moment drop the handler's future, or say
        /// [`LeaseHandle::refuse_hand_over`].
        deadline_ms: u64,
        /// What for.
        why: DrainReason,
    },
    /// The lease is lost: deliver nothing more, and checkpoint nothing. [`LeaseHandle::finish`] says how
    /// it ended, but nothing is written.
    Lost,
}

/// What a shard is to be drained for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DrainReason {
    /// Another worker asked for the lease.
    HandOver {
        /// Who.
        to: WorkerId,
    },
    /// This worker is stopping.
    Stopping,
    /// The stream is no longer to be read.
    StreamRemoved,
    /// The stream was deleted, and perhaps created again. [`LeaseHandle::may_deliver`] says no from now
    /// on.
    StreamRecreated,
}

/// How the reading of a shard came to an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FinishReason {
    /// No handler runs any more, and everything done is checkpointed.
    Drained,
    /// The shard's end was written by [`LeaseHandle::end`] or [`LeaseHandle::resolve_missing`].
    Ended,
    /// It can't be read on for now. The lease is given back after a pause.
    Failed,
}

impl<S: LeaseStore, A: StreamApi> LeaseHandle<S, A> {
    pub(crate) fn new(held: Arc<HeldLease>, tools: Arc<LeaseContext<S, A>>) -> Self {
        Self { held, context: tools }
    }

    /// What it is made of, for those who write to the row in ways of their own.
    pub(crate) fn held_and_context(&self) -> (&Arc<HeldLease>, &Arc<LeaseContext<S, A>>) {
        (&self.held, &self.context)
    }

    /// The row as the take returned it: where to read on.
    pub fn lease(&self) -> &Lease {
        self.held.taken_row()
    }

    /// Which lease.
    pub fn key(&self) -> &LeaseKey {
        &self.held.taken_row().key
    }

    /// Who holds it.
    pub fn worker(&self) -> &WorkerId {
        self.held.owner()
    }

    /// Whether a record may be handed to the handler in this very poll. Ask again after each
    /// await.
    pub fn may_deliver(&self) -> bool {
        self.may_deliver_at(self.context.clock.now_ms())
    }

    /// The same, for who has just read the clock.
    #[inline]
    pub(crate) fn may_deliver_at(&self, now_ms: u64) -> bool {
        self.held.may_deliver(now_ms)
    }

    /// Waits while delivery is paused because the store does not answer. Returns whether records
    /// may be delivered; `false` is for ever.
    pub async fn wait_until_may_deliver(&self) -> bool {
        self.held.wait_until_may_deliver(&self.context.clock).await
    }

    /// Waits until the reading has to stop. After [`StopReason::Drain`] it waits for the next reason:
    /// another drain, if that one was refused by [`LeaseHandle::refuse_hand_over`], or the loss of the lease.
    pub async fn wait_for_stop(&self) -> StopReason {
        self.held.wait_for_stop(&self.context.clock).await
    }

    /// Says on the row that the lease can't be handed over, because a handler can't be stopped.
    /// Whoever asked for it has to do without; any other reason to stop still holds.
    pub async fn refuse_hand_over(&self) {
        self.set_hand_over_refused(true).await;
    }

    /// Says that the lease can be handed over again.
    pub async fn allow_hand_over(&self) {
        self.set_hand_over_refused(false).await;
    }

    /// Gives the grip back. It is good for nothing from here on.
    pub fn finish(&self, how: FinishReason) {
        self.held.finish(how);
    }
}

impl<S: LeaseStore, A: StreamApi> Drop for LeaseHandle<S, A> {
    fn drop(&mut self) {
        self.held.finish(FinishReason::Failed);
    }
}

impl<S: LeaseStore, A: StreamApi> fmt::Debug for LeaseHandle<S, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grip({}, term {})", self.key(), self.held.taken_row().term)
    }
}
