//! The ephemeral consumer: all shards of a stream from now on or from a moment, with nothing stored.
//!
//! ```text
//! driver ─ list ─► Descent ─ start ─► a Poll per shard ─ Chunk ─► one channel ─► next()
//!                     ▲                       │ shard's end: those that follow
//!                     └───────────────────────┘
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

/// Replies of all shards that wait to be taken.
const CHUNKS: usize = 16;

/// Reads all shards of a stream for itself alone: no leases, no checkpoints, nothing stored.
///
/// Each key comes in order: a shard that was split or merged is read to its end before those that
/// follow it. Shards that had ended before the start are skipped. It begins with the first call of
/// [`Tail::next`], and stops when it is dropped. Calls that fail are made again, for ever; what
/// can't pass by itself (no such stream, no permission, credentials that stay expired for half a
/// minute) is an error, and ends it.
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
#[must_use = "a tail reads nothing until somebody asks for records"]
pub struct Tail<K = FromEnv> {
    /// Kinesis, or how to reach it, until the first record is asked for.
    kinesis: Option<K>,
    config: TailConfig,
    /// How far it is.
    state: TailState,
    /// What the driver says beside the records.
    shared: Arc<TailShared>,
    /// Records of the last reply that were not taken yet.
    waiting: VecDeque<UserRecord>,
    /// The shard that they came from, and the memory that they take.
    chunk: Option<Chunk>,
    /// The shards whose newest record was seen.
    caught_up: BTreeSet<Arc<LeaseKey>>,
}

/// The settings of a tail.
#[derive(Clone)]
struct TailConfig {
    /// The stream.
    stream: StreamName,
    /// Where to start.
    since: StartPosition,
    /// The longest pause between two reads of an idle shard, in milliseconds.
    idle_poll_ms: u64,
    /// Bytes of records that are held at once.
    memory_bytes: usize,
    /// Where it reads the time.
    clock: Clock,
    /// Where it draws random numbers.
    chance: Rng,
    /// Who wants to know what happens.
    events: Events,
}

/// The error that ended a tail.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TailError {
    /// Kinesis can't be reached as configured.
    #[error(transparent)]
    Kinesis(#[from] KinesisConfigError),
    /// A call failed in a way that does not pass by itself.
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

/// How far a tail is.
enum TailState {
    /// Nobody has asked for a record.
    New,
    /// It reads.
    Reading {
        /// What was read.
        chunks: mpsc::Receiver<Chunk>,
        /// The task that reads. Dropped, it stops.
        _driver: JoinSet<()>,
    },
    /// It has ended.
    Over,
}

impl Tail {
    /// Creates a tail of all shards of a stream, from now on.
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
    /// Reads from this Kinesis: an `SdkConfig`, or any [`StreamApi`](crate::StreamApi). Default:
    /// the region, credentials and endpoint of the environment ([`FromEnv`]).
    pub fn with_kinesis<L: IntoStreamApi>(self, kinesis: L) -> Tail<L> {
        let Self { config, state, shared, waiting, chunk, caught_up, .. } = self;
        Tail { kinesis: Some(kinesis), config, state, shared, waiting, chunk, caught_up }
    }

    /// Starts there: at what arrives from now on (the default), at a moment, or at the oldest
    /// record.
    pub fn since(mut self, since: StartPosition) -> Self {
        self.config.since = since;
        self
    }

    /// Sets the longest pause between two reads of an idle shard. Default 1 s; at least 200 ms.
    pub fn with_idle_poll_interval(mut self, interval: Duration) -> Self {
        self.config.idle_poll_ms = millis(interval).max(200);
        self
    }

    /// Holds at most so many bytes of records. Default 64 MiB; 10 MiB at least.
    pub fn with_memory_bytes(mut self, bytes: usize) -> Self {
        self.config.memory_bytes = bytes;
        self
    }

    /// Tells `events` what happens.
    pub fn with_events(mut self, events: Events) -> Self {
        self.config.events = events;
        self
    }

    /// Reads the time and draws random numbers there: for tests.
    pub fn with_clock(mut self, clock: Clock, chance: Rng) -> Self {
        (self.config.clock, self.config.chance) = (clock, chance);
        self
    }

    /// The next record. `None` after an error.
    pub async fn next(&mut self) -> Option<Result<Delivery, TailError>> {
        poll_fn(|context| self.poll_record(context)).await
    }

    /// The next record, or `None` once everything that was in the stream has come.
    pub async fn next_until_caught_up(&mut self) -> Option<Result<Delivery, TailError>> {
        poll_fn(|context| match self.poll_record(context) {
            Poll::Pending if self.is_caught_up() => Poll::Ready(None),
            polled => polled,
        })
        .await
    }

    /// Whether every record has come that was in the stream when its shard was last read.
    pub fn is_caught_up(&self) -> bool {
        let TailState::Reading { chunks, .. } = &self.state else { return false };
        // The shards first: a shard's last records are in the channel before it leaves the list.
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
        // Behind the end of a closed shard are its children, and behind a part of a reply is the rest.
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

/// Reads the stream as far as the tail wants it.
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

/// Yields the records, and the error that ends them.
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
