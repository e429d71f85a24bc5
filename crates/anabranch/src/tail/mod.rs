//! The tail: reads all shards of a stream in one process, from a start position on, and stores
//! nothing.
//!
//! ```no_run
//! use anabranch::{StartPosition, Tail};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let mut tail = Tail::new("orders").since(StartPosition::TrimHorizon);
//! while let Some(record) = tail.next_until_caught_up().await {
//!     println!("{}", record?.partition_key);
//! }
//! println!("all stored records were read");
//! # Ok(())
//! # }
//! ```
//!
//! Path of a record:
//!
//! ```text
//! TailDriver ─ ShardList ─► LineageWalk ─ start ─► LeaselessReader ─ Chunk ─► mpsc ─► Tail::next
//!                                ▲                 (one task per shard)
//!                                └──── followers ───────┘ end of the shard
//! ```

mod driver;

use crate::clock::{Clock, Rng};
use crate::consumer::{Chunk, Delivery};
use crate::event::Events;
use crate::stream::api::StreamError;
use crate::stream::{FromEnv, IntoStreamApi, KinesisConfigError};
use crate::time::millis;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::LeaseKey;
use anabranch_model::limits;
use anabranch_model::position::StartPosition;
use anabranch_model::record::UserRecord;
use anabranch_model::retry::Fault;
use driver::{TailDriver, TailShared};
use futures_core::Stream;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Maximum number of chunks of all shards in the channel.
const CHUNKS: usize = 16;

/// Reads all shards of a stream in one process, without leases or checkpoints.
///
/// Each key is in order: a shard that was split or merged is read to its end before its children.
/// Shards that had ended before the start position are skipped.
///
/// Reading begins with the first call of [`Tail::next`], and stops when the tail is dropped.
/// Transient failures are retried without limit. Other failures end the tail with an error: no such
/// stream, no permission, or credentials that stay expired for half a minute.
///
/// ```no_run
/// # use anabranch::{StartPosition, Tail};
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let mut tail = Tail::new("orders").since(StartPosition::Latest);
/// while let Some(record) = tail.next().await {
///     let record = record?;
///     println!("{}: {:?}", record.partition_key, record.data);
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a tail reads nothing until records are requested"]
pub struct Tail<K = FromEnv> {
    /// The Kinesis API, or the value from which it is made. `None` once reading has begun.
    kinesis: Option<K>,
    config: TailConfig,
    state: TailState,
    /// State shared with the driver, apart from the records.
    shared: Arc<TailShared>,
    /// Records of `chunk` that were not returned yet.
    waiting: VecDeque<UserRecord>,
    /// The current chunk: its shard, and the memory reservation of its records.
    chunk: Option<Chunk>,
    /// Shards whose newest record was received.
    caught_up: BTreeSet<Arc<LeaseKey>>,
}

/// Settings of a tail.
#[derive(Clone)]
struct TailConfig {
    stream: StreamName,
    since: StartPosition,
    /// Maximum pause between two reads of an idle shard, in milliseconds.
    idle_poll_ms: u64,
    /// Maximum bytes of records in memory.
    memory_bytes: usize,
    clock: Clock,
    chance: Rng,
    events: Events,
}

/// The error that ended a tail.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TailError {
    /// The configuration of Kinesis is incomplete or wrong.
    #[error(transparent)]
    Kinesis(#[from] KinesisConfigError),
    /// A call failed with an error that retries do not resolve.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

impl TailError {
    /// Returns the classified failure of the call, if a call failed.
    pub fn fault(&self) -> Option<Fault> {
        match self {
            Self::Kinesis(_) => None,
            Self::Stream(error) => Some(error.fault),
        }
    }
}

/// State of a tail.
enum TailState {
    /// No record was requested yet.
    New,
    /// The driver is running.
    Reading {
        chunks: mpsc::Receiver<Chunk>,
        /// The driver task. Dropping it stops the task.
        _driver: JoinSet<()>,
    },
    /// The tail has ended.
    Over,
}

impl Tail {
    /// Creates a tail of all shards of a stream. It starts at the records that arrive from now on.
    pub fn new(stream: impl Into<StreamName>) -> Self {
        let config = TailConfig {
            stream: stream.into(),
            since: StartPosition::Latest,
            idle_poll_ms: 1_000,
            memory_bytes: 64 << 20,
            clock: Clock::machine(),
            chance: Rng::of_system(),
            events: Events::none(),
        };
        Self {
            kinesis: Some(FromEnv),
            config,
            state: TailState::New,
            shared: Arc::default(),
            waiting: VecDeque::new(),
            chunk: None,
            caught_up: BTreeSet::new(),
        }
    }
}

impl<K: IntoStreamApi> Tail<K> {
    /// Reads from `kinesis`: an `SdkConfig`, or any [`StreamApi`](crate::StreamApi). Default: the
    /// region, credentials and endpoint of the environment ([`FromEnv`]).
    pub fn with_kinesis<L: IntoStreamApi>(self, kinesis: L) -> Tail<L> {
        let Self { config, state, shared, waiting, chunk, caught_up, .. } = self;
        Tail { kinesis: Some(kinesis), config, state, shared, waiting, chunk, caught_up }
    }

    /// Sets the start position. Default: [`StartPosition::Latest`].
    pub fn since(mut self, since: StartPosition) -> Self {
        self.config.since = since;
        self
    }

    /// Sets the maximum pause between two reads of an idle shard. Default 1 s. Values below 200 ms
    /// count as 200 ms.
    pub fn with_idle_poll_interval(mut self, interval: Duration) -> Self {
        self.config.idle_poll_ms = millis(interval).max(200);
        self
    }

    /// Sets the maximum bytes of records in memory. Default 64 MiB. Values below 10 MiB count as
    /// 10 MiB.
    pub fn with_memory_bytes(mut self, bytes: usize) -> Self {
        self.config.memory_bytes = bytes.max(limits::GET_RECORDS_MAX_BYTES);
        self
    }

    /// Passes events to `events`. Default: events are discarded.
    pub fn with_events(mut self, events: Events) -> Self {
        self.config.events = events;
        self
    }

    /// Uses this clock and this source of random numbers, for tests.
    pub fn with_clock(mut self, clock: Clock, chance: Rng) -> Self {
        (self.config.clock, self.config.chance) = (clock, chance);
        self
    }

    /// Returns the next record. An error ends the tail; after it, returns `None`.
    pub async fn next(&mut self) -> Option<Result<Delivery, TailError>> {
        poll_fn(|context| self.poll_record(context)).await
    }

    /// Returns the next record, or `None` once [`Tail::is_caught_up`] is true. A later call
    /// continues with records that have arrived since. An error ends the tail.
    pub async fn next_until_caught_up(&mut self) -> Option<Result<Delivery, TailError>> {
        poll_fn(|context| match self.poll_record(context) {
            Poll::Pending if self.is_caught_up() => Poll::Ready(None),
            polled => polled,
        })
        .await
    }

    /// Returns true if every record was returned that was in the stream when its shard was last
    /// read. False before the first call of [`Tail::next`], and after the tail has ended.
    pub fn is_caught_up(&self) -> bool {
        let TailState::Reading { chunks, .. } = &self.state else { return false };
        // The shards are checked before the channel: a shard's last records are in the channel
        // before the shard leaves the list.
        let all =
            self.shared.all_caught_up(&self.config.stream, |shard| self.caught_up.contains(shard));
        all && self.waiting.is_empty() && chunks.is_empty()
    }

    fn poll_record(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Delivery, TailError>>> {
        loop {
            if let (Some(record), Some(chunk)) = (self.waiting.pop_front(), &self.chunk) {
                let shard = Arc::clone(&chunk.shard);
                return Poll::Ready(Some(Ok(Delivery { shard, lease_term: None, record })));
            }
            self.chunk = None;
            let chunks = match &mut self.state {
                TailState::Over => return Poll::Ready(None),
                TailState::Reading { chunks, .. } => chunks,
                TailState::New => {
                    self.begin();
                    continue;
                }
            };
            match chunks.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(chunk)) => self.take(chunk),
                Poll::Ready(None) => {
                    self.state = TailState::Over;
                    return Poll::Ready(self.shared.error().map(Err));
                }
            }
        }
    }

    fn begin(&mut self) {
        let (sender, chunks) = mpsc::channel(CHUNKS);
        let mut task = JoinSet::new();
        if let Some(kinesis) = self.kinesis.take() {
            task.spawn(drive(kinesis, self.config.clone(), Arc::clone(&self.shared), sender));
        }
        self.state = TailState::Reading { chunks, _driver: task };
    }

    fn take(&mut self, mut chunk: Chunk) {
        // The end of a closed shard is followed by its children, and a part of a reply by the rest.
        if !chunk.more && !chunk.at_end {
            self.caught_up.insert(Arc::clone(&chunk.shard));
        } else {
            self.caught_up.remove(&chunk.shard);
        }
        self.caught_up.retain(|shard| self.shared.reads(&shard.shard));
        self.waiting = std::mem::take(&mut chunk.records).into();
        self.chunk = Some(chunk);
    }
}

/// Makes the Kinesis API and runs the driver.
async fn drive<K: IntoStreamApi>(
    kinesis: K,
    config: TailConfig,
    shared: Arc<TailShared>,
    chunks: mpsc::Sender<Chunk>,
) {
    match kinesis.into_stream_api().await {
        Ok(api) => TailDriver::new(Arc::new(api), config, shared, chunks).run().await,
        Err(error) => shared.fail(error.into()),
    }
}

/// Yields the records, and at the end the error.
impl<K: IntoStreamApi + Unpin> Stream for Tail<K> {
    type Item = Result<Delivery, TailError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_record(context)
    }
}

impl<K> fmt::Debug for Tail<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tail({} since {:?})", self.config.stream, self.config.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_below_the_minimum_is_raised_to_one_reply() {
        for (bytes, expected) in
            [(0, 10 << 20), ((10 << 20) - 1, 10 << 20), (10 << 20, 10 << 20), (1 << 30, 1 << 30)]
        {
            let tail = Tail::new("orders").with_memory_bytes(bytes);
            assert_eq!(tail.config.memory_bytes, expected, "{bytes}");
        }
    }
}
