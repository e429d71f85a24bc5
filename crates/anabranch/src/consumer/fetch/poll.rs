//! Polling: `GetRecords` within the shard's rates, with a timer on every path.
//!
//! ```text
//! pace ─► reserve ─► iterator ─► records ─► lanes ─┐
//!   ▲                   ▲  expired: behind the last │
//!   │                   └── record that came ───────┤
//!   └── empty: a growing pause; failed: a growing pause with jitter
//! ```

use super::{FetchEnd, Source};
use crate::consumer::decode::Reply;
use crate::event::ShardEvent;
use crate::stream::api::{ReadFrom, ShardIterator, StreamApi, StreamError};
use anabranch_model::bucket::{Allowance, Bucket};
use anabranch_model::limits;
use anabranch_model::record::Record;
use anabranch_model::retry::Fault;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The pause after the first empty read; it doubles up to the idle poll.
const EMPTY_PAUSE_MS: u64 = 200;

/// A shard that is polled.
pub(crate) struct Poll<A> {
    /// What fetching needs.
    pub(crate) source: Source<A>,
    /// The longest pause between two reads of an idle shard, in milliseconds.
    pub(crate) idle_poll_ms: u64,
    /// An iterator that stands where the reading begins, if there is one.
    pub(crate) first: Option<ShardIterator>,
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
        let mut rates =
            Bucket::new([allowance(calls), allowance(bytes)], self.source.clock.now_ms());
        let mut place = Place { from, iterator: self.first.clone(), empty: 0, failures: 0 };
        loop {
            while let Some(ms) =
                rates.wait_ms(self.source.clock.now_ms(), [1, 0]).filter(|ms| *ms > 0)
            {
                self.source.clock.sleep(ms).await;
            }
            match self.round(&mut place, &mut rates).await {
                Round::After(ms) => self.source.clock.sleep(ms).await,
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
        let room = self.source.share.reserve(&self.source.clock).await;
        let stream = &self.source.feed.shard.stream;
        rates.charge(self.source.clock.now_ms(), [1, 0]);
        let read = self
            .source
            .in_time("GetRecords", self.source.api.records(stream, &iterator, room.limit));
        let fetched = match read.await {
            Ok(fetched) => fetched,
            Err(error) => return self.failed(place, &error),
        };
        let bytes: usize = fetched.records.iter().map(size).sum();
        rates.charge(self.source.clock.now_ms(), [0, bytes as u64]);
        place.failures = 0;
        if let Some(last) = fetched.records.last() {
            place.from = ReadFrom::After(last.sequence);
        }
        place.iterator = fetched.next;
        let (came, behind_ms) = (fetched.records.len(), fetched.behind_ms);
        let full = came >= room.limit as usize;
        if came > 0 {
            self.source.fetched(came, behind_ms);
        }
        let room = Some(room.settle(&fetched.records));
        let at_end = place.iterator.is_none();
        let reply = Reply { records: fetched.records, room, behind_ms, at_end };
        if self.source.feed.give(reply).await.is_err() {
            return Round::Over(FetchEnd::Stopped);
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
        let (source, key) = (&self.source, &self.source.feed.shard);
        place.from = source.fixed(place.from).await?;
        let asked = source.api.iterator(&key.stream, &key.shard, place.from);
        let iterator = source.in_time("GetShardIterator", asked).await?;
        place.iterator = Some(iterator.clone());
        Ok(iterator)
    }

    fn failed(&self, place: &mut Place, error: &StreamError) -> Round {
        let shard = Arc::clone(&self.source.feed.shard);
        match error.fault {
            Fault::Missing => return Round::Over(FetchEnd::Missing),
            // The next one begins behind the last record that came, wherever this one stood.
            Fault::IteratorExpired if place.iterator.take().is_some() => {
                self.source.feed.events.emit(ShardEvent::IteratorRenewed { shard });
                return Round::After(0);
            }
            Fault::Invalid => place.iterator = None,
            _ => {}
        }
        place.failures = place.failures.saturating_add(1);
        Round::After(self.source.failed(error, place.failures))
    }
}

fn size(record: &Record) -> usize {
    record.data.len() + record.partition_key.len()
}
