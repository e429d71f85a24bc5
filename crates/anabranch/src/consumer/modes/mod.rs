//! The shapes of the user's code: what a shard's reading asks of any of them.
//!
//! | shape | calls | who says what is done |
//! |---|---|---|
//! | [`Handler`] | a closure per record or batch | the library, when a call returns `Ok` |
//! | [`ExactlyOnce`](super::ExactlyOnce) | a closure per batch | the user's own transaction |
//! | [`ShardProcessor`](super::ShardProcessor) | KCL's five callbacks | the user, by a checkpointer |
//! | [`ShardStreams`](super::ShardStreams) | a stream per shard | the user, by an ack per record |

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

/// A shape of the user's code, for all shards of a worker. Write a [`Handler`] or a
/// [`ShardProcessor`](super::ShardProcessor) instead of one of these.
pub trait ProcessingMode<S: LeaseStore>: Send + Sync + Sized + 'static {
    /// What it is for one shard.
    type ShardWork: Work;

    /// How many records one call takes at most.
    fn max_records(&self) -> usize;

    /// Whether the records of a shard may go to several lanes.
    fn supports_lanes(&self) -> bool {
        true
    }

    /// Whether a call is made for a read that gave no records.
    fn wants_empty_reads(&self) -> bool {
        false
    }

    /// The work on one shard, from the take of its lease until the lease goes.
    fn work<A: StreamApi>(self: &Arc<Self>, grip: &Arc<LeaseHandle<S, A>>) -> Self::ShardWork;

    /// The work on the shard anew, in place of one that can't go on, and where it begins. The
    /// lease was taken at `taken`. `None` if nothing of this shape asks for it.
    fn restart(
        self: &Arc<Self>,
        before: &Self::ShardWork,
        taken: &Checkpoint,
    ) -> impl Future<Output = Option<(Self::ShardWork, Checkpoint)>> + Send {
        let _ = (before, taken);
        std::future::ready(None)
    }
}

/// The user's code for one shard. Of these calls only [`Work::handle`] overlaps with itself, once
/// for each lane.
pub trait Work: Send + Sync + 'static {
    /// Before the first record.
    fn begin(&self) -> impl Future<Output = Result<(), HandlerError>> + Send {
        async { Ok(()) }
    }

    /// Records of one lane. On an error the same records come again.
    fn handle(
        &self,
        call: HandlerCall<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Up to where the shard is done, as a row of this layout can keep it. `None` if the user
    /// writes it down.
    fn checkpoint_for(&self, progress: &Progress, layout: Layout) -> Option<Checkpoint> {
        Some(progress.checkpoint(layout))
    }

    /// Every record of the closed shard was handled. Its end is written after `Ok`; on an error it
    /// is asked again. A stop leaves it its grace; [`Work::begin_stop`] comes at its beginning.
    fn ended(&self) -> impl Future<Output = Result<(), HandlerError>> + Send {
        async { Ok(()) }
    }

    /// Whether [`Work::ended`] has returned `Ok` and must not be asked again, so that a stop leaves
    /// the writing of the end its whole grace.
    fn has_ended(&self) -> bool {
        false
    }

    /// The shard is to be given back, and no call runs. The future is dropped at the deadline.
    fn stopping(&self) -> impl Future<Output = Result<(), HandlerError>> + Send {
        async { Ok(()) }
    }

    /// The shard is to be given back as soon as the calls that run have ended.
    fn begin_stop(&self) {}

    /// Resolves when the user's code takes no more of the shard: it is given back, and taken again
    /// after a pause.
    fn wait_gave_up(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Resolves when nothing more can come to be done of a shard that was given up.
    fn wait_settled(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// The shard is no longer this worker's, or is about to go.
    fn closed(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Nobody takes records of the shard any more, so those of the call were not tried: they are
/// neither done nor failed. [`Work::wait_gave_up`] says what becomes of the shard.
#[derive(Debug, thiserror::Error)]
#[error("nobody takes the shard's records any more")]
pub(super) struct NotAccepted;

/// One call for records of one lane.
#[derive(Clone, Copy, Debug)]
pub struct HandlerCall<'a> {
    /// Which lane.
    pub lane: usize,
    /// Where the lanes of the shard stand.
    pub progress: &'a Progress,
    /// The records, in order.
    pub records: &'a [UserRecord],
    /// How far the last of them is behind the shard's newest, in milliseconds.
    pub behind_ms: u64,
    /// Whether the closed shard has no more.
    pub at_end: bool,
    /// The memory that the records share with the rest of their reply.
    pub(super) reservation: Option<&'a Arc<ReplyReservation>>,
}

/// A handler, for one shard.
#[derive(Debug)]
pub struct HandlerWork<H> {
    /// The handler of all shards.
    handler: Arc<H>,
    /// Which shard.
    shard: Arc<LeaseKey>,
    /// The term of its lease.
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
