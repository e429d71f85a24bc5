//! Polling: `GetRecords` within the shard's rates, with a timer on every path.
//!
//! ```text
//! pace ─► reserve ─► iterator ─► records ─► lanes ─┐
//!   ▲                   ▲  expired: behind the last │
//!   │                   └── record that came ───────┤
//!   └── empty: a growing pause; failed: a growing pause with jitter
//! ```

use super::FetchEnd;
use crate::clock::{Chance, Clock};
use crate::consumer::budget::Share;
use crate::consumer::decode::Feed;
use crate::event::ShardEvent;
use crate::stream::api::{ReadFrom, ShardFilter, ShardIterator, StreamApi, StreamError};
use anabranch_model::bucket::{Allowance, Bucket};
use anabranch_model::limits;
use anabranch_model::record::Record;
use anabranch_model::retry::{Backoff, Fault};
use std::future::Future;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The pause after the first empty read; it doubles up to the idle poll.
const EMPTY_PAUSE_MS: u64 = 200;
/// Pauses after a call that failed.
const FAILED: Backoff = Backoff::new(200, 10_000);
/// The longest that one call is waited for, whatever time-outs the API has of its own.
const CALL_MS: u64 = 40_000;

/// A shard that is polled.
pub(crate) struct Poll<A> {
    /// The service.
    pub(crate) api: Arc<A>,
    /// Where the records go.
    pub(crate) feed: Feed,
    /// The memory that they may take.
    pub(crate) share: Share,
    /// The longest pause between two reads of an idle shard, in milliseconds.
    pub(crate) idle_poll_ms: u64,
    /// The worker's clock.
    pub(crate) clock: Clock,
    /// The worker's chance.
    pub(crate) chance: Chance,
}

/// Where reading stands.
struct Place {
    /// Where to ask for an iterator.
    from: ReadFrom,
    /// The iterator, while there is one.
    iterator: Option<ShardIterator>,
    /// Reads in a row that gave nothing.
    empty: u32,
    /// Calls in a row that failed.
    failures: u32,
}

/// What one round of polling came to.
enum Round {
    /// Go on after this many milliseconds.
    After(u64),
    /// It is over.
    Over(FetchEnd),
}

impl<A: StreamApi> Poll<A> {
    /// Reads from `from` to the end of the shard, or until it is told to stop.
    pub(crate) async fn run(self, from: ReadFrom, stop: CancellationToken) -> FetchEnd {
        tokio::select! {
            biased;
            () = stop.cancelled() => FetchEnd::Stopped,
            end = self.read(from) => end,
        }
    }

    async fn read(self, from: ReadFrom) -> FetchEnd {
        let calls = u64::from(limits::SHARD_READ_CALLS_PER_SECOND);
        let bytes = limits::SHARD_READ_BYTES_PER_SECOND as u64;
        let allowance = |most| Allowance { capacity: most, per_second: most };
        let mut rates = Bucket::new([allowance(calls), allowance(bytes)], self.clock.now_ms());
        let mut place = Place { from, iterator: None, empty: 0, failures: 0 };
        loop {
            while let Some(ms) = rates.wait_ms(self.clock.now_ms(), [1, 0]).filter(|ms| *ms > 0) {
                self.clock.sleep(ms).await;
            }
            match self.round(&mut place, &mut rates).await {
                Round::After(ms) => self.clock.sleep(ms).await,
                Round::Over(end) => return end,
            }
        }
    }

    async fn round(&self, place: &mut Place, rates: &mut Bucket<2>) -> Round {
        let iterator = match &place.iterator {
            Some(iterator) => iterator.clone(),
            None => match self.iterator(place).await {
                Ok(iterator) => iterator,
                Err(error) => return self.failed(place, &error),
            },
        };
        let room = self.share.reserve(&self.clock).await;
        let stream = &self.feed.shard.stream;
        rates.charge(self.clock.now_ms(), [1, 0]);
        let read = self.in_time("GetRecords", self.api.records(stream, &iterator, room.limit));
        let fetched = match read.await {
            Ok(fetched) => fetched,
            Err(error) => return self.failed(place, &error),
        };
        let bytes: usize = fetched.records.iter().map(size).sum();
        rates.charge(self.clock.now_ms(), [0, bytes as u64]);
        place.failures = 0;
        if let Some(last) = fetched.records.last() {
            place.from = ReadFrom::After(last.sequence);
        }
        place.iterator = fetched.next;
        let (came, behind_ms) = (fetched.records.len(), fetched.behind_ms);
        let full = came >= room.limit as usize;
        if came > 0 {
            let shard = Arc::clone(&self.feed.shard);
            let told = ShardEvent::Fetched { shard, records: came, behind_ms };
            self.feed.events.emit(told);
            let room = room.settle(&fetched.records);
            if self.feed.give(fetched.records, room).await.is_err() {
                return Round::Over(FetchEnd::Stopped);
            }
        }
        if place.iterator.is_none() {
            return Round::Over(FetchEnd::ShardEnd(fetched.children));
        }
        if came > 0 {
            place.empty = 0;
            // More is there, or may be: the shard's rate is the only brake.
            return Round::After(if full || behind_ms > 0 { 0 } else { EMPTY_PAUSE_MS });
        }
        // An empty reply in the middle of a shard is normal, and no reason to wait.
        if behind_ms > 0 {
            return Round::After(0);
        }
        let pause = EMPTY_PAUSE_MS.saturating_mul(1 << place.empty.min(16));
        place.empty = place.empty.saturating_add(1);
        Round::After(pause.min(self.idle_poll_ms))
    }

    async fn iterator(&self, place: &mut Place) -> Result<ShardIterator, StreamError> {
        let key = &self.feed.shard;
        if place.from == ReadFrom::Latest {
            // LATEST a second time would skip what came in between, so it becomes a moment.
            let list = self.api.list_shards(&key.stream, ShardFilter::AtLatest);
            let list = self.in_time("ListShards", list).await?;
            let now_ms = list.service_ms.unwrap_or_else(|| self.clock.wall_ms());
            place.from = ReadFrom::AtTimestamp(now_ms);
        }
        let asked = self.api.iterator(&key.stream, &key.shard, place.from);
        let iterator = self.in_time("GetShardIterator", asked).await?;
        place.iterator = Some(iterator.clone());
        Ok(iterator)
    }

    fn failed(&self, place: &mut Place, error: &StreamError) -> Round {
        let shard = Arc::clone(&self.feed.shard);
        match error.fault {
            Fault::Missing => return Round::Over(FetchEnd::Missing),
            // The next one begins behind the last record that came, wherever this one stood.
            Fault::IteratorExpired if place.iterator.take().is_some() => {
                self.feed.events.emit(ShardEvent::IteratorRenewed { shard });
                return Round::After(0);
            }
            Fault::Invalid => place.iterator = None,
            _ => {}
        }
        place.failures = place.failures.saturating_add(1);
        let (failures, error) = (place.failures, error.to_string());
        let pause_ms = FAILED.wait_ms(failures, self.chance.bits());
        self.feed.events.emit(ShardEvent::FetchFailed { shard, error, failures, pause_ms });
        Round::After(pause_ms)
    }

    /// A call that is given up when it takes too long.
    async fn in_time<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, StreamError>>,
    ) -> Result<T, StreamError> {
        tokio::select! {
            biased;
            outcome = call => outcome,
            () = self.clock.sleep(CALL_MS) => Err(StreamError {
                fault: Fault::ReplyLost,
                operation,
                target: self.feed.shard.to_string(),
                detail: format!("no answer within {CALL_MS} ms"),
                source: None,
            }),
        }
    }
}

fn size(record: &Record) -> usize {
    record.data.len() + record.partition_key.len()
}
