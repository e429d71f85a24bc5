//! The stream mode: a stream of shards, each a stream of records that are acked one by one.
//!
//! ```text
//! lane ─ StreamItem ─► channel ─► ShardStream::next ─ ShardRecord ─► user ─ ack ─► AckTracker
//!                       ▲ permit: as many as may be unacked            │            │ watermark
//!                       └──────────────── returned with the ack ◄──────┘        checkpoint
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

/// Maximum number of shards that wait to be taken.
const OFFERED: usize = 1;

/// The shards of a worker, each as a stream of records, in the order in which it gets their leases.
///
/// The children of a closed shard follow after its last record is acked. Keys stay in order if the
/// records of each shard are handled in order.
///
/// The worker runs in a task of its own. Take the shards as they come: a shard that waits to be
/// taken is not read, and is reported as stuck after `WatchdogLimits::handler_ms`. One waiting
/// shard is read ahead as if it were taken. It is reported once no more of its records fit.
///
/// Dropping this stops the worker at once, as in a crash; [`ShardStreams::stop`] stops it in order.
#[must_use = "dropping it stops the worker at once"]
pub struct ShardStreams {
    /// Shards that wait to be taken.
    offered: mpsc::Receiver<ShardStream>,
    /// The task of the worker.
    worker: JoinSet<Result<(), RunError>>,
    /// Asks the worker to stop.
    stop: CancellationToken,
}

/// Processing mode that offers each shard as a stream.
pub(in crate::consumer) struct ShardStreamMode {
    offer: mpsc::Sender<ShardStream>,
    /// Maximum number of records of a shard above its watermark.
    unacked: u32,
}

impl<A: StreamApi, S: LeaseStore, H> Consumer<A, S, H> {
    /// Runs the worker in a task, and returns its shards as streams. Each shard has up to `unacked`
    /// records (at least 1) that wait for their ack, or for the ack of an earlier record. Must be
    /// called inside a tokio runtime.
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
    /// Waits for the next shard. Returns `None` when the worker has ended; [`ShardStreams::stop`]
    /// returns the reason.
    pub async fn next(&mut self) -> Option<ShardStream> {
        poll_fn(|context| self.offered.poll_recv(context)).await
    }

    /// Stops the worker in order. The streams of all shards end, records taken from them can still
    /// be acked within the grace period, and the shards are released.
    pub async fn stop(mut self) -> Result<(), RunError> {
        self.stop.cancel();
        // Makes a shard that waits to be offered fail at once.
        self.offered.close();
        match self.worker.join_next().await {
            Some(Ok(ended)) => ended,
            // The task panicked, which is a fault of this library.
            Some(Err(_)) | None => Err(RunError::CoordinatorEnded),
        }
    }
}

/// Yields the shards.
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
