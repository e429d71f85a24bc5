//! The handle with which a worker reads a shard.
//!
//! ```text
//! Coordinator ── LeaseHandle ──► reader of the shard
//!                     │  may_deliver                        in the same poll as the handler's call
//!                     │  wait_for_stop                      Drain { deadline_ms, why } | Lost
//!                     │  checkpoint, end, resolve_missing   fenced writes
//!                     ▼
//!               finish(FinishReason)    the coordinator hands the lease over or releases it
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

/// The right to read one shard, from the moment at which its gate is open until
/// [`LeaseHandle::finish`].
///
/// No other worker delivers the shard's records while [`LeaseHandle::may_deliver`] returns true. A
/// dropped handle counts as [`FinishReason::Failed`].
pub struct LeaseHandle<S: LeaseStore, A: StreamApi> {
    /// State shared with the coordinator.
    held: Arc<HeldLease>,
    context: Arc<LeaseContext<S, A>>,
}

/// Reason why the reader of a shard must stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// Finish what was begun, checkpoint, and call [`LeaseHandle::finish`] with
    /// [`FinishReason::Drained`]. The worker owns the lease until then.
    Drain {
        /// Deadline by the worker's clock, in milliseconds. When it passes, drop the handler's
        /// future or call [`LeaseHandle::refuse_hand_over`].
        deadline_ms: u64,
        /// The reason for the drain.
        why: DrainReason,
    },
    /// The lease is lost: deliver nothing more, and checkpoint nothing. [`LeaseHandle::finish`]
    /// must still be called, but nothing is written.
    Lost,
}

/// Reason why a shard is to be drained.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DrainReason {
    /// Another worker asked for the lease.
    HandOver {
        /// The worker that asked.
        to: WorkerId,
    },
    /// This worker is stopping.
    Stopping,
    /// The stream is no longer to be read.
    StreamRemoved,
    /// The stream was deleted, and perhaps created again. [`LeaseHandle::may_deliver`] returns
    /// false from now on.
    StreamRecreated,
}

/// The outcome of reading a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FinishReason {
    /// No handler runs any more, and everything done is checkpointed.
    Drained,
    /// The shard's end was written by [`LeaseHandle::end`] or [`LeaseHandle::resolve_missing`].
    Ended,
    /// The shard can't be read for now. The lease is released after a pause.
    Failed,
}

impl<S: LeaseStore, A: StreamApi> LeaseHandle<S, A> {
    pub(crate) fn new(held: Arc<HeldLease>, tools: Arc<LeaseContext<S, A>>) -> Self {
        Self { held, context: tools }
    }

    /// Returns the handle's parts, for code that writes the row by other means.
    pub(crate) fn held_and_context(&self) -> (&Arc<HeldLease>, &Arc<LeaseContext<S, A>>) {
        (&self.held, &self.context)
    }

    /// Returns the row as the take returned it. Its checkpoint is where reading resumes.
    pub fn lease(&self) -> &Lease {
        self.held.taken_row()
    }

    /// Returns the key of the lease.
    pub fn key(&self) -> &LeaseKey {
        &self.held.taken_row().key
    }

    /// Returns the id of the worker that holds the lease.
    pub fn worker(&self) -> &WorkerId {
        self.held.owner()
    }

    /// Returns true if a record may be passed to the handler in the current poll of the future.
    /// Check again after each await.
    pub fn may_deliver(&self) -> bool {
        self.may_deliver_at(self.context.clock.now_ms())
    }

    /// Does the same for a caller that has just read the clock.
    #[inline]
    pub(crate) fn may_deliver_at(&self, now_ms: u64) -> bool {
        self.held.may_deliver(now_ms)
    }

    /// Waits while delivery is paused because the store does not answer. Returns true if records
    /// may be delivered; `false` is final.
    pub async fn wait_until_may_deliver(&self) -> bool {
        self.held.wait_until_may_deliver(&self.context.clock).await
    }

    /// Waits until the reading has to stop. After [`StopReason::Drain`] it waits for the next
    /// reason: another drain, if that one was refused by [`LeaseHandle::refuse_hand_over`], or the
    /// loss of the lease.
    pub async fn wait_for_stop(&self) -> StopReason {
        self.held.wait_for_stop(&self.context.clock).await
    }

    /// Writes on the row that the lease can't be handed over, because a handler can't be stopped.
    /// The worker that asked for it does not get it. Any other reason to stop remains.
    pub async fn refuse_hand_over(&self) {
        self.set_hand_over_refused(true).await;
    }

    /// Writes on the row that the lease can be handed over again.
    pub async fn allow_hand_over(&self) {
        self.set_hand_over_refused(false).await;
    }

    /// Returns the handle to the coordinator. Nothing may be delivered or written with it any more.
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
        write!(f, "LeaseHandle({}, term {})", self.key(), self.held.taken_row().term)
    }
}
