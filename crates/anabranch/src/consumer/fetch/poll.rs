//! Polling with `GetRecords`, within the shard's rate limits. Every call has a timeout.
//!
//! ```text
//! pace ─► reserve ─► iterator ─► records ─► lanes ─┐
//!   ▲                   ▲  expired: after the last │
//!   │                   ├── record received ───────┤
//!   │                   └── an unproven end ───────┤
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

/// Pause after the first empty read. It doubles up to `idle_poll_ms`.
const EMPTY_PAUSE_MS: u64 = 200;

/// Maximum number of records per request.
#[expect(clippy::cast_possible_truncation, reason = "it is ten thousand")]
const MOST: u32 = limits::GET_RECORDS_MAX_RECORDS as u32;

/// Divisor of the record limit after a reply was lost. Each successful reply doubles the limit.
const FEWER: u32 = 8;

/// Reads a shard by polling.
pub(crate) struct PollingReader<A> {
    pub(crate) source: FetchContext<A>,
    /// Maximum pause between two reads of an idle shard, in milliseconds.
    pub(crate) idle_poll_ms: u64,
    /// Iterator at the start position, if the caller already has one.
    pub(crate) first: Option<ShardIterator>,
    /// If true, ends with [`FetchEnd::Refused`] on an error that does not pass by itself. If false,
    /// retries without limit, because an operator may grant the missing permission.
    pub(crate) ends_refused: bool,
}

/// State of the polling loop.
struct ReadPosition {
    /// Position at which to request an iterator.
    from: ReadFrom,
    iterator: Option<ShardIterator>,
    /// Number of consecutive empty reads.
    empty: u32,
    /// Number of consecutive failed calls.
    failures: u32,
    /// Size expected of the next reply, judged by the last one.
    expects: ExpectedSize,
    /// Maximum number of records to request.
    most: u32,
    reach: RetentionTracker,
    ending: ShardEndTracker,
}

/// Result of one polling round.
enum PollRound {
    /// Continue after this many milliseconds.
    After(u64),
    /// The reading is over.
    Over(FetchEnd),
}

impl<A: StreamApi> PollingReader<A> {
    /// Reads from `from` to the end of the shard, or until `stop` is cancelled.
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
                    // The connection may be too slow for a reply of this size.
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
        // At a claimed end, `failures` is reset only once the list of shards succeeds, so that
        // failing list calls are retried with growing pauses.
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
        // Some emulators always report 0 ms behind, so a full page also counts as "more available".
        let full = came >= limit as usize || bytes >= limits::GET_RECORDS_MAX_BYTES / 2;
        // A caught-up shard that receives one record at a time does not need to reserve 10 MiB.
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
            // More records are available, or may be: only the shard's rate limits delay the next
            // read.
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

    /// Handles a read that claims the end of the shard and names these children.
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
            // The next iterator starts after the last record received, wherever the expired one
            // stood.
            Fault::IteratorExpired if place.iterator.take().is_some() => {
                self.source.feed.events.emit(ShardEvent::IteratorRenewed { shard });
                return PollRound::After(0);
            }
            // The same after an unclassified error, which may be the fault of the iterator.
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
