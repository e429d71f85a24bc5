//! The shape for experts: a stream of shards, each a stream of records that are acked one by one.
//!
//! ```text
//! lane ─ Item ─► channel ─► ShardStream::next ─ ShardRecord ─► the user ─ ack ─► AckWindow
//!                 ▲ permit: as many as may be unacked               │              │ watermark
//!                 └───────────────── comes back with the ack ◄──────┘         checkpoint
//! ```

mod record;
mod stream;
mod work;

pub use record::ShardRecord;
pub use stream::ShardStream;

use crate::consumer::config::Consumer;
use crate::consumer::run::RunError;
use crate::lease::LeaseStore;
use crate::stream::api::StreamApi;
use futures_core::Stream;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Shards that wait to be taken.
const OFFERED: usize = 1;

/// The shards that a worker reads, one after another as it gets their leases, each as a stream of
/// records. A closed shard's children come after its last record is acked, so that the order of
/// keys is kept by whoever handles the records of each shard in order.
///
/// The worker runs in a task of its own. Take the shards as they come: one that waits to be taken
/// is not read, and is told as standing still in time (`WatchdogLimits::handler_ms`). One of them waits
/// as if it were taken: it is told when no more of its records fit.
///
/// Dropped, the worker stops at once, as in a crash; [`ShardStreams::stop`] stops it in order.
#[must_use = "dropped, the worker stops at once"]
pub struct ShardStreams {
    /// Shards that wait to be taken.
    offered: mpsc::Receiver<ShardStream>,
    /// The worker.
    worker: JoinSet<Result<(), RunError>>,
    /// Asks it to stop.
    stop: CancellationToken,
}

/// The shape: each shard is offered as a stream.
pub(in crate::consumer) struct ShardStreamMode {
    /// Where shards are offered.
    offer: mpsc::Sender<ShardStream>,
    /// How many records of a shard may stand above its watermark.
    unacked: u32,
}

impl<A: StreamApi, S: LeaseStore, H> Consumer<A, S, H> {
    /// Runs the worker in a task, and gives its shards as streams. Of each, up to `unacked` records
    /// (1 at least) wait for acks, or for that of one before them. Call it inside a tokio runtime.
    pub fn shard_streams(self, unacked: u32) -> ShardStreams {
        let (offer, offered) = mpsc::channel(OFFERED);
        let consumer = self.with_handler(ShardStreamMode { offer, unacked: unacked.max(1) });
        let stop = CancellationToken::new();
        let asked = stop.clone();
        let mut worker = JoinSet::new();
        worker.spawn(consumer.run_until(async move { asked.cancelled().await }));
        ShardStreams { offered, worker, stop }
    }
}

impl ShardStreams {
    /// The next shard. `None` when the worker has ended: [`ShardStreams::stop`] says why.
    pub async fn next(&mut self) -> Option<ShardStream> {
        poll_fn(|context| self.offered.poll_recv(context)).await
    }

    /// Stops in order: the streams of all shards end, what was taken of them may still be acked
    /// within the grace period, and the shards are given back.
    pub async fn stop(mut self) -> Result<(), RunError> {
        self.stop.cancel();
        // Whoever waits to offer a shard is told that nobody takes it.
        self.offered.close();
        match self.worker.join_next().await {
            Some(Ok(ended)) => ended,
            // It panicked, which is a fault of this library.
            Some(Err(_)) | None => Err(RunError::CoordinatorEnded),
        }
    }
}

/// The shards.
impl Stream for ShardStreams {
    type Item = ShardStream;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ShardStream>> {
        self.get_mut().offered.poll_recv(context)
    }
}

impl fmt::Debug for ShardStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShardStreams")
    }
}
