//! Processing modes: the interface between the reading of a shard and the user's code.
//!
//! | mode | calls | records are done by |
//! |---|---|---|
//! | [`Handler`] | a closure per record or batch | a call that returns `Ok` |
//! | [`ExactlyOnce`](super::ExactlyOnce) | a closure per batch | the user's transaction |
//! | [`ShardProcessor`](super::ShardProcessor) | KCL's five callbacks | the user's checkpoints |
//! | [`ShardStreams`](super::ShardStreams) | a stream per shard | the user's ack per record |

pub(super) mod closure;
pub(super) mod exactly_once;
pub(super) mod processor;
pub(super) mod shard_stream;
use self::closure::{Handler, HandlerError};
use super::dispatch::memory::ReplyReservation;
use super::progress::Progress;
use crate::lease::{LeaseHandle, LeaseStore};
use crate::stream::api::StreamApi;
use anabranch_model::lease::{Checkpoint, Layout, LeaseKey};
use anabranch_model::record::UserRecord;
use std::future::Future;
use std::sync::Arc;

/// Processing mode of a consumer, for all shards of a worker. Applications implement a [`Handler`]
/// or a [`ShardProcessor`](super::ShardProcessor) instead.
pub trait ProcessingMode<S: LeaseStore>: Send + Sync + Sized + 'static {
    /// The user's code for one shard.
    type ShardWork: Work;

    /// Returns the maximum number of records per call.
    fn max_records(&self) -> usize;

    /// Returns true if the records of a shard may go to several lanes.
    fn supports_lanes(&self) -> bool {
        true
    }

    /// Returns true if a read without records also leads to a call.
    fn wants_empty_reads(&self) -> bool {
        false
    }

    /// Creates the work on one shard, which lasts from the take of its lease until the lease ends.
    fn work<A: StreamApi>(self: &Arc<Self>, grip: &Arc<LeaseHandle<S, A>>) -> Self::ShardWork;

    /// Creates new work on the shard in place of one that cannot continue. Returns it with the
    /// checkpoint at which it begins, or `None` if this mode supports no restart. `taken` is the
    /// checkpoint at which the lease was taken.
    fn restart(
        self: &Arc<Self>,
        before: &Self::ShardWork,
        taken: &Checkpoint,
    ) -> impl Future<Output = Option<(Self::ShardWork, Checkpoint)>> + Send {
        let _ = (before, taken);
        std::future::ready(None)
    }
}

/// The user's code for one shard. Only calls of [`Work::handle`] overlap, at most one per lane.
pub trait Work: Send + Sync + 'static {
    /// Runs before the first record.
    fn begin(&self) -> impl Future<Output = Result<(), HandlerError>> + Send {
        async { Ok(()) }
    }

    /// Handles records of one lane. After an error the same records are delivered again.
    fn handle(
        &self,
        call: HandlerCall<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Returns the checkpoint of the shard, as a row of this layout can hold it. `None` if the
    /// user's code writes the checkpoints.
    fn checkpoint_for(&self, progress: &Progress, layout: Layout) -> Option<Checkpoint> {
        Some(progress.checkpoint(layout))
    }

    /// Runs after every record of the closed shard was handled. After `Ok` the end of the shard is
    /// written; after an error this is called again. It may continue during the grace period of a
    /// stop, at whose beginning [`Work::begin_stop`] is called.
    fn ended(&self) -> impl Future<Output = Result<(), HandlerError>> + Send {
        async { Ok(()) }
    }

    /// Returns true if [`Work::ended`] has returned `Ok` and must not be called again. A stop then
    /// leaves the whole grace period for writing the end of the shard.
    fn has_ended(&self) -> bool {
        false
    }

    /// Runs before the shard is released, when no other call is running. The future is dropped at
    /// the deadline.
    fn stopping(&self) -> impl Future<Output = Result<(), HandlerError>> + Send {
        async { Ok(()) }
    }

    /// Notes that the shard will be released as soon as the running calls end.
    fn begin_stop(&self) {}

    /// Resolves when the user's code accepts no more records of the shard. The shard is then
    /// released, and taken again after a pause.
    fn wait_gave_up(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Resolves when no more records of a shard that was given up can become done.
    fn wait_settled(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Runs when the lease is lost or about to be released.
    fn closed(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Error of a call that was not attempted, because the user's code accepts no more records of the
/// shard. The records are neither done nor failed. [`Work::wait_gave_up`] decides what happens to
/// the shard.
#[derive(Debug, thiserror::Error)]
#[error("the shard stream was dropped, so its records are not accepted")]
pub(super) struct NotAccepted;

/// One call with records of one lane.
#[derive(Clone, Copy, Debug)]
pub struct HandlerCall<'a> {
    /// Index of the lane, from 0.
    pub lane: usize,
    /// Progress of all lanes of the shard.
    pub progress: &'a Progress,
    /// Records in order; empty for a read without records.
    pub records: &'a [UserRecord],
    /// Distance of the last record from the tip of the shard, in milliseconds.
    pub behind_ms: u64,
    /// True if the read says that the shard is closed and has no records after these.
    pub at_end: bool,
    /// Memory reservation of the whole reply.
    pub(super) reservation: Option<&'a Arc<ReplyReservation>>,
}

/// A [`Handler`] on one shard.
#[derive(Debug)]
pub struct HandlerWork<H> {
    /// The handler, shared by all shards.
    handler: Arc<H>,
    shard: Arc<LeaseKey>,
    /// Term of the shard's lease.
    lease_term: u64,
}

impl<S: LeaseStore, H: Handler> ProcessingMode<S> for H {
    type ShardWork = HandlerWork<H>;

    fn max_records(&self) -> usize {
        Handler::max_records(self)
    }

    fn work<A: StreamApi>(self: &Arc<Self>, grip: &Arc<LeaseHandle<S, A>>) -> HandlerWork<H> {
        HandlerWork {
            handler: Arc::clone(self),
            shard: Arc::new(grip.key().clone()),
            lease_term: grip.lease().term,
        }
    }
}

impl<H: Handler> Work for HandlerWork<H> {
    fn handle(
        &self,
        call: HandlerCall<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send {
        self.handler.handle(&self.shard, self.lease_term, call.records)
    }
}
