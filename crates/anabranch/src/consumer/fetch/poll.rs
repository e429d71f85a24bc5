//! Polling: `GetRecords` within the shard's rates, with a timer on every path.
//!
//! ```text
//! pace ─► reserve ─► iterator ─► records ─► lanes ─┐
//!   ▲                   ▲  expired: behind the last │
//!   │                   ├── record that came ───────┤
//!   │                   └── an end without proof ───┤
//!   └── empty: a growing pause; failed: a growing pause with jitter
//! ```

use super::retention::RetentionTracker;
use super::shard_end::{EndClaim, ShardEndTracker};
use super::{FetchContext, FetchEnd, is_final};
use crate::consumer::dispatch::dispatcher::ReadReply;
use crate::consumer::dispatch::memory::ExpectedSize;
use crate::consumer::health::telemetry::FetchStep;
use crate::event::ShardEvent;
use crate::stream::api::{ChildShard, ReadFrom, ShardIterator, StreamApi, StreamError};
use anabranch_model::bucket::{Allowance, Bucket};
use anabranch_model::limits;
use anabranch_model::record::Record;
use anabranch_model::retry::Fault;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The pause after the first empty read; it doubles up to the idle poll.
const EMPTY_PAUSE_MS: u64 = 200;

/// The most records that are asked for.
#[expect(clippy::cast_possible_truncation, reason = "it is ten thousand")]
const MOST: u32 = limits::GET_RECORDS_MAX_RECORDS as u32;

/// By how much fewer are asked for after a reply that did not come whole. It is doubled with each one
/// that does.
const FEWER: u32 = 8;

/// A shard that is polled.
pub(crate) struct PollingReader<A> {
    /// What fetching needs.
    pub(crate) source: FetchContext<A>,
    /// The longest pause between two reads of an idle shard, in milliseconds.
    pub(crate) idle_poll_ms: u64,
    /// An iterator that stands where the reading begins, if there is one.
    pub(crate) first: Option<ShardIterator>,
    /// Whether it ends when the service refuses what will not pass by itself. If not, it asks for
    /// ever: somebody may give the permission that lacks.
    pub(crate) ends_refused: bool,
}

/// Where reading stands.
struct ReadPosition {
    /// Where to ask for an iterator.
    from: ReadFrom,
    /// The iterator, while there is one.
    iterator: Option<ShardIterator>,
    /// Reads in a row that gave nothing.
    empty: u32,
    /// Calls in a row that failed.
    failures: u32,
    /// What the next read may give, as far as the last one tells.
    expects: ExpectedSize,
    /// How many records to ask for at the most.
    most: u32,
    /// How far the shard was read.
    reach: RetentionTracker,
    /// What is known of its end.
    ending: ShardEndTracker,
}

/// What one round of polling came to.
enum PollRound {
    /// Go on after this many milliseconds.
    After(u64),
    /// It is over.
    Over(FetchEnd),
}

impl<A: StreamApi> PollingReader<A> {
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
        let (iterator, expects) = (self.first.clone(), ExpectedSize::Small);
        let (reach, ending) = (RetentionTracker::new(from), ShardEndTracker::default());
        let mut place = ReadPosition {
            from,
            iterator,
            empty: 0,
            failures: 0,
            expects,
            most: MOST,
            reach,
            ending,
        };
        loop {
            while let Some(ms) =
                rates.wait_ms(self.source.clock.now_ms(), [1, 0]).filter(|ms| *ms > 0)
            {
                self.source.clock.sleep(ms).await;
            }
            match self.round(&mut place, &mut rates).await {
                PollRound::After(ms) => self.source.clock.sleep(ms).await,
                PollRound::Over(end) => return end,
            }
        }
    }

    async fn round(&self, place: &mut ReadPosition, rates: &mut Bucket<2>) -> PollRound {
        let vitals = &self.source.feed.vitals;
        let iterator = match &place.iterator {
            Some(iterator) => iterator.clone(),
            None => match self.iterator_at(place).await {
                Ok(iterator) => iterator,
                Err(error) => return self.failed(place, error),
            },
        };
        vitals.enter(FetchStep::Memory);
        let room = self.source.feed.share.reserve(&self.source.clock, place.expects).await;
        vitals.enter(FetchStep::Fetch);
        let stream = &self.source.feed.shard.stream;
        let asked_ms = self.source.clock.now_ms();
        let waited_ms = place.reach.waited_ms(asked_ms);
        rates.charge(asked_ms, [1, 0]);
        let limit = room.limit.min(place.most);
        let read =
            self.source.in_time("GetRecords", self.source.api.records(stream, &iterator, limit));
        let fetched = match read.await {
            Ok(fetched) => fetched,
            Err(error) => {
                if error.fault == Fault::ReplyLost {
                    // The line may be too slow for so much at once.
                    place.most = (place.most / FEWER).max(1);
                }
                return self.failed(place, error);
            }
        };
        place.most = place.most.saturating_mul(2).min(MOST);
        let bytes: usize = fetched.records.iter().map(size).sum();
        let now_ms = self.source.clock.now_ms();
        rates.charge(now_ms, [0, bytes as u64]);
        vitals.replied(fetched.behind_ms);
        // An end counts when it is believed: a list that is refused is asked for more and more seldom.
        if fetched.next.is_some() {
            place.failures = 0;
        }
        if let Some(last) = fetched.records.last() {
            place.from = ReadFrom::After(last.sequence);
        }
        place.iterator = fetched.next;
        let (came, behind_ms) = (fetched.records.len(), fetched.behind_ms);
        let reply = (asked_ms, &*fetched.records, behind_ms);
        self.source.note_reached(&mut place.reach, waited_ms, reply).await;
        // Some doubles of the service are never behind, so what may have been cut off counts too.
        let full = came >= limit as usize || bytes >= limits::GET_RECORDS_MAX_BYTES / 2;
        // Who is caught up and finds a record at a time needs no room for ten megabytes.
        place.expects =
            if behind_ms > 0 || came > 1 { ExpectedSize::Large } else { ExpectedSize::Small };
        if came > 0 {
            self.source.fetched(came, behind_ms, Some(now_ms.saturating_sub(asked_ms)));
        }
        let room = Some(room.shrink_to(&fetched.records));
        let at_end = place.iterator.is_none();
        let more = behind_ms > 0 || full;
        let reply = ReadReply { records: fetched.records, room, behind_ms, at_end, more };
        if self.source.feed.dispatch(reply).await.is_err() {
            return PollRound::Over(FetchEnd::Stopped);
        }
        vitals.enter(FetchStep::Idle);
        if place.iterator.is_none() {
            return self.end(place, fetched.children).await;
        }
        if came > 0 {
            place.empty = 0;
            // More is there, or may be: the shard's rate is the only brake.
            let more = behind_ms > 0 || (full && came > 1);
            return PollRound::After(if more { 0 } else { EMPTY_PAUSE_MS });
        }
        // An empty reply in the middle of a shard is normal, and no reason to wait.
        if behind_ms > 0 {
            return PollRound::After(0);
        }
        let pause = EMPTY_PAUSE_MS.saturating_mul(1 << place.empty.min(16));
        place.empty = place.empty.saturating_add(1);
        PollRound::After(pause.min(self.idle_poll_ms))
    }

    /// The read says that the shard has ended, and names these children.
    async fn end(&self, place: &mut ReadPosition, named: Vec<ChildShard>) -> PollRound {
        match place.ending.note_end(&self.source, named).await {
            Ok(EndClaim::Proven(children)) => PollRound::Over(FetchEnd::ShardEnd(children)),
            Ok(EndClaim::Doubtful(pause_ms)) => {
                place.failures = 0;
                PollRound::After(pause_ms)
            }
            Err(error) => self.failed(place, error),
        }
    }

    async fn iterator_at(&self, place: &mut ReadPosition) -> Result<ShardIterator, StreamError> {
        self.source.feed.vitals.enter(FetchStep::Iterator);
        let (source, key) = (&self.source, &self.source.feed.shard);
        place.from = source.pin_latest(place.from).await?;
        let asked = source.api.iterator(&key.stream, &key.shard, place.from);
        let iterator = source.in_time("GetShardIterator", asked).await?;
        place.iterator = Some(iterator.clone());
        Ok(iterator)
    }

    fn failed(&self, place: &mut ReadPosition, error: StreamError) -> PollRound {
        let shard = Arc::clone(&self.source.feed.shard);
        match error.fault {
            Fault::Missing => return PollRound::Over(FetchEnd::Missing),
            // The next one begins behind the last record that came, wherever this one stood.
            Fault::IteratorExpired if place.iterator.take().is_some() => {
                self.source.feed.events.emit(ShardEvent::IteratorRenewed { shard });
                return PollRound::After(0);
            }
            // So does one after an error that nobody knows, which may have been about the iterator.
            Fault::Invalid | Fault::Unknown => place.iterator = None,
            _ => {}
        }
        place.failures = place.failures.saturating_add(1);
        if self.ends_refused && is_final(&error, place.failures) {
            return PollRound::Over(FetchEnd::Refused(error));
        }
        PollRound::After(self.source.failed(&error, place.failures))
    }
}

fn size(record: &Record) -> usize {
    record.data.len() + record.partition_key.len()
}
