//! The driver task of a tail: reads each shard in its own task, after its ancestors have ended.

use super::{TailConfig, TailError};
use crate::consumer::{Chunk, FetchEnd, LeaselessReader, LeaselessStart, MemoryBudget, is_final};
use crate::stream::api::{ReadFrom, ShardFilter, ShardIterator, ShardList, StreamApi, StreamError};
use crate::stream::start_shards::{is_whole, list_from};
use anabranch_model::hash::HashRange;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::LeaseKey;
use anabranch_model::lineage::walk::LineageWalk;
use anabranch_model::lineage::{Lineage, Shard};
use anabranch_model::position::StartPosition;
use anabranch_model::retry::{Backoff, Fault};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

/// Backoff after a failed call.
const FAILED: Backoff = Backoff::new(200, 10_000);
/// Pause in milliseconds before an incomplete or contradictory shard list is read again.
const AGAIN_MS: u64 = 1_000;

/// State that the driver shares with the tail, apart from the records.
#[derive(Debug, Default)]
pub(super) struct TailShared {
    inside: Mutex<TailSharedState>,
}

#[derive(Debug, Default)]
struct TailSharedState {
    /// Shards that are being read or wait for their ancestors.
    descent: LineageWalk,
    /// Shards that were closed when the tail began. The children of each are still to be read.
    closed: BTreeSet<ShardId>,
    /// True once the first shards are known.
    begun: bool,
    /// The error that ended the tail.
    error: Option<TailError>,
}

impl TailShared {
    /// Returns true if the first shards are known and `such` is true for all current ones.
    ///
    /// A shard that was closed at the start makes it false: some services report only with a
    /// further read that a closed shard has no more records.
    pub(super) fn all_caught_up(
        &self,
        stream: &StreamName,
        such: impl Fn(&LeaseKey) -> bool,
    ) -> bool {
        let inside = self.lock();
        let key = |shard: &ShardId| LeaseKey { stream: stream.clone(), shard: shard.clone() };
        let such = |shard: &ShardId| !inside.closed.contains(shard) && such(&key(shard));
        inside.begun && inside.descent.shards().all(such)
    }

    /// Returns true if the shard is being read or waits for its ancestors.
    pub(super) fn reads(&self, shard: &ShardId) -> bool {
        self.lock().descent.shards().any(|it| it == shard)
    }

    /// Takes the error that ended the tail.
    pub(super) fn error(&self) -> Option<TailError> {
        self.lock().error.take()
    }

    /// Sets the error that ends the tail.
    pub(super) fn fail(&self, error: TailError) {
        self.lock().error = Some(error);
    }

    fn lock(&self) -> MutexGuard<'_, TailSharedState> {
        // Each change is complete before the lock is released, so a panic leaves no partial one.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Driver task of a tail.
pub(super) struct TailDriver<A> {
    api: Arc<A>,
    told: TailConfig,
    shared: Arc<TailShared>,
    chunks: mpsc::Sender<Chunk>,
    /// Reader of single shards.
    alone: LeaselessReader<A>,
}

/// Result of reading a shard.
struct EndedShard {
    shard: ShardId,
    /// The shards that follow, or the error that ends the tail.
    followers: Result<Vec<(ShardId, HashRange)>, StreamError>,
}

impl<A: StreamApi> TailDriver<A> {
    pub(super) fn new(
        api: Arc<A>,
        told: TailConfig,
        shared: Arc<TailShared>,
        chunks: mpsc::Sender<Chunk>,
    ) -> Self {
        let alone = LeaselessReader {
            api: Arc::clone(&api),
            summaries: Arc::default(),
            budget: MemoryBudget::new(told.memory_bytes),
            idle_poll_ms: told.idle_poll_ms,
            clock: told.clock.clone(),
            chance: told.chance.clone(),
            events: told.events.clone(),
        };
        Self { api, told, shared, chunks, alone }
    }

    /// Reads until an error that retries do not resolve, or until it is dropped.
    pub(super) async fn run(self) {
        let this = Arc::new(self);
        if let Err(error) = Arc::clone(&this).read_all().await {
            this.shared.fail(error.into());
        }
    }

    async fn read_all(self: Arc<Self>) -> Result<(), StreamError> {
        let mut reads = JoinSet::new();
        let since = self.told.since;
        let filter = match since {
            StartPosition::Latest => ShardFilter::AtLatest,
            StartPosition::TrimHorizon => ShardFilter::AtTrimHorizon,
            StartPosition::AtTimestamp(ms) => ShardFilter::AtTimestamp(ms),
        };
        let list = self.first_list(filter).await?;
        // Stands for LATEST on shards where no iterator for it can be had.
        let now_ms = list.service_ms.unwrap_or_else(|| self.told.clock.wall_ms());
        // A tail from LATEST begins with open shards only.
        let closed = match since {
            StartPosition::Latest => BTreeSet::new(),
            _ => self.closed().await?,
        };
        for (shard, range) in self.begin(list.shards, closed) {
            let this = Arc::clone(&self);
            reads.spawn(async move {
                let (from, iterator) = match since {
                    StartPosition::TrimHorizon => (ReadFrom::TrimHorizon, None),
                    StartPosition::AtTimestamp(ms) => (ReadFrom::AtTimestamp(ms), None),
                    StartPosition::Latest => {
                        (ReadFrom::AtTimestamp(now_ms), this.newest(&shard).await)
                    }
                };
                this.read(shard, range, LeaselessStart { iterator, from }).await
            });
        }
        while let Some(ended) = reads.join_next().await {
            let EndedShard { shard, followers } = ended.map_err(|error| self.panicked(error))?;
            let followers = followers?;
            let next = {
                let mut inside = self.shared.lock();
                for (follower, range) in followers {
                    inside.descent.add(follower, range);
                }
                inside.descent.end(&shard);
                inside.descent.start()
            };
            for (shard, range) in next {
                let this = Arc::clone(&self);
                // Children of a shard that was read are read from their beginning.
                let begin = LeaselessStart { iterator: None, from: ReadFrom::TrimHorizon };
                reads.spawn(async move { this.read(shard, range, begin).await });
            }
        }
        Ok(())
    }

    /// Returns the error for a read that panicked, which is a bug in this library. Without the
    /// error, the tail would silently miss records.
    fn panicked(&self, error: JoinError) -> StreamError {
        StreamError {
            fault: Fault::Unknown,
            operation: "reading a shard",
            target: self.told.stream.to_string(),
            detail: error.to_string(),
            source: Some(Box::new(error)),
        }
    }

    /// Returns the first shards. Waits for a list without holes in its hash range, because the
    /// records of a missing shard would be silently skipped.
    async fn first_list(&self, filter: ShardFilter) -> Result<ShardList, StreamError> {
        let (api, stream) = (&*self.api, &self.told.stream);
        loop {
            let list = self.call(|| list_from(api, stream, filter)).await?;
            if is_whole(&list.shards) {
                return Ok(list);
            }
            self.told.clock.sleep(AGAIN_MS).await;
        }
    }

    async fn closed(&self) -> Result<BTreeSet<ShardId>, StreamError> {
        let shards = self.list(ShardFilter::All).await?.shards;
        Ok(shards.into_iter().filter(|it| it.ending.is_some()).map(|it| it.id).collect())
    }

    fn begin(&self, shards: Vec<Shard>, closed: BTreeSet<ShardId>) -> Vec<(ShardId, HashRange)> {
        let mut inside = self.shared.lock();
        inside.closed = closed;
        for shard in shards {
            inside.descent.add(shard.id, shard.range);
        }
        inside.begun = true;
        inside.descent.start()
    }

    /// Returns an iterator at LATEST if the first attempt succeeds. A later iterator would skip
    /// records that arrived in the meantime. Without one, reading begins at the time of the list.
    async fn newest(&self, shard: &ShardId) -> Option<ShardIterator> {
        self.api.iterator(&self.told.stream, shard, ReadFrom::Latest).await.ok()
    }

    /// Reads a shard to its end.
    async fn read(
        &self,
        shard: ShardId,
        range: HashRange,
        mut begin: LeaselessStart,
    ) -> EndedShard {
        let key = LeaseKey { stream: self.told.stream.clone(), shard: shard.clone() };
        let key = Arc::new(key);
        loop {
            let (end, on) = self.alone.read(&key, range, begin, self.chunks.clone()).await;
            begin = LeaselessStart { iterator: None, from: on };
            let followers = match end {
                FetchEnd::ShardEnd(children) => {
                    Ok(Some(children.into_iter().map(|child| (child.id, child.range)).collect()))
                }
                FetchEnd::Missing => self.successors(&shard, &range).await,
                FetchEnd::Refused(error) => Err(error),
                // The tail was dropped.
                FetchEnd::Stopped => Ok(Some(Vec::new())),
            };
            if let Some(followers) = followers.transpose() {
                return EndedShard { shard, followers };
            }
            // The shard list contains the shard, whatever the read said: read it again.
            self.told.clock.sleep(AGAIN_MS).await;
        }
    }

    /// Returns the successors of a shard that the service does not know. `None` if a shard list
    /// contains the shard.
    async fn successors(
        &self,
        shard: &ShardId,
        range: &HashRange,
    ) -> Result<Option<Vec<(ShardId, HashRange)>>, StreamError> {
        let lineage = Lineage::new(self.list(ShardFilter::All).await?.shards);
        let heirs = lineage.successors(shard, Some(range));
        Ok(heirs.map(|heirs| heirs.into_iter().map(|it| (it.id.clone(), it.range)).collect()))
    }

    /// Returns the shard list. Retries transient failures.
    async fn list(&self, filter: ShardFilter) -> Result<ShardList, StreamError> {
        self.call(|| self.api.list_shards(&self.told.stream, filter)).await
    }

    /// Makes a call, and retries transient failures.
    async fn call<T, F: Future<Output = Result<T, StreamError>>>(
        &self,
        call: impl Fn() -> F,
    ) -> Result<T, StreamError> {
        let mut failures = 0;
        loop {
            match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_retryable() && !is_final(&error, failures) => {
                    self.pause(&mut failures).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn pause(&self, failures: &mut u32) {
        *failures = failures.saturating_add(1);
        let ms = FAILED.wait_ms(*failures, self.told.chance.bits());
        self.told.clock.sleep(ms).await;
    }
}
