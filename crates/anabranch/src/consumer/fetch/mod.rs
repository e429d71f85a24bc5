//! Where records come from: polled, or pushed by enhanced fan-out.

pub(super) mod poll;
pub(super) mod fan_out;
mod latest;
mod retention;
mod shard_end;
pub(super) mod leaseless;

pub(super) use latest::LatestResolver;

use super::dispatch::dispatcher::Dispatcher;
use crate::clock::{Clock, Rng};
use crate::event::ShardEvent;
use crate::stream::api::{ChildShard, ReadFrom, StreamApi, StreamError, StreamSummary};
use crate::stream::summaries::{MaxAge, Summaries};
use anabranch_model::lease::LeaseKey;
use anabranch_model::limits;
use anabranch_model::record::Record;
use anabranch_model::retry::{Backoff, Fault};
use retention::RetentionTracker;
use std::future::Future;
use std::sync::Arc;

/// Pauses after a call that failed.
pub(super) const FAILED: Backoff = Backoff::new(200, 10_000);
/// The longest that one call is waited for, whatever time-outs the API has of its own.
const CALL_MS: u64 = 40_000;
/// How often in a row credentials may be refused that somebody may be about to renew, and requests
/// that a fresh iterator may mend: about half a minute.
const DOUBTS: u32 = 8;
/// Nothing that has waited for less than this is past retention.
const KEPT_MS: u64 = limits::RETENTION_MIN_HOURS as u64 * 3_600_000;

/// How old the answer may be that says for how long the stream keeps records.
const RETENTION_AGE: MaxAge = MaxAge { summary_ms: 600_000, failure_ms: 60_000 };

/// How records are fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FetchMode {
    /// `GetRecords`: five calls and 2 MB a second for each shard, shared by all applications.
    #[default]
    Poll,
    /// `SubscribeToShard`: 2 MB a second for each shard and application, pushed within
    /// milliseconds. It is paid for. The consumer is registered under the application's name.
    FanOut,
}

/// Why fetching ended.
#[derive(Debug)]
pub(crate) enum FetchEnd {
    /// The closed shard has no more records, and these follow.
    ShardEnd(Vec<ChildShard>),
    /// The service says that it has no such shard.
    Missing,
    /// The service refuses, and will go on to. Only those who asked for it are told so.
    Refused(StreamError),
    /// It was told to stop.
    Stopped,
}

/// Whether an error that came so often in a row does not pass by itself.
pub(crate) fn is_final(error: &StreamError, failures: u32) -> bool {
    match error.fault {
        Fault::CredentialsExpired | Fault::Invalid => failures >= DOUBTS,
        // Whoever asks finds out what is missing.
        Fault::Missing => false,
        fault => !fault.is_retryable(),
    }
}

/// A call that is given up when it takes too long.
async fn with_timeout<T>(
    clock: &Clock,
    operation: &'static str,
    shard: &LeaseKey,
    call: impl Future<Output = Result<T, StreamError>>,
) -> Result<T, StreamError> {
    tokio::select! {
        biased;
        outcome = call => outcome,
        () = clock.sleep(CALL_MS) => Err(StreamError {
            fault: Fault::ReplyLost,
            operation,
            target: shard.to_string(),
            detail: format!("no answer within {CALL_MS} ms"),
            source: None,
        }),
    }
}

/// What fetching one shard needs, whichever way.
pub(super) struct FetchContext<A> {
    /// The service.
    pub(super) api: Arc<A>,
    /// Where the records go.
    pub(super) feed: Dispatcher,
    /// What LATEST stands for, once somebody has read from there.
    pub(super) latest: Arc<LatestResolver>,
    /// The streams' summaries, which all shards share.
    pub(super) summaries: Arc<Summaries>,
    /// The worker's clock.
    pub(super) clock: Clock,
    /// The worker's chance.
    pub(super) chance: Rng,
}

impl<A: StreamApi> FetchContext<A> {
    /// A call that is given up when it takes too long.
    async fn in_time<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, StreamError>>,
    ) -> Result<T, StreamError> {
        with_timeout(&self.clock, operation, &self.feed.shard, call).await
    }

    /// The same place without LATEST, which becomes a moment.
    async fn pin_latest(&self, from: ReadFrom) -> Result<ReadFrom, StreamError> {
        if from != ReadFrom::Latest {
            return Ok(from);
        }
        let moment = self.latest.resolve(&*self.api, &self.feed.shard, &self.clock);
        Ok(ReadFrom::AtTimestamp(moment.await?))
    }

    /// Notes what a reply says of how far the shard was read, and tells what was lost before it. The
    /// reply is of a moment at or after the one that stands first.
    async fn note_reached(
        &self,
        reach: &mut RetentionTracker,
        waited_ms: Option<u64>,
        reply: (u64, &[Record], u64),
    ) {
        if waited_ms.is_some_and(|ms| ms > KEPT_MS) {
            reach.note_retention(self.retention_ms().await);
        }
        if let Some(gap) = reach.reply(reply, waited_ms) {
            let shard = Arc::clone(&self.feed.shard);
            self.feed.events.emit(ShardEvent::RetentionGap { shard, after: gap.after, to: gap.to });
        }
    }

    /// For how long the stream keeps records, if it says so now.
    async fn retention_ms(&self) -> Option<u64> {
        Some(self.summary(RETENTION_AGE).await.ok()?.retention_ms)
    }

    /// The stream's summary: the last one, if it is young enough.
    async fn summary(&self, max_age: MaxAge) -> Result<StreamSummary, StreamError> {
        let stream = &self.feed.shard.stream;
        let call = self.in_time("DescribeStreamSummary", self.api.describe(stream));
        self.summaries.get(stream, || self.clock.now_ms(), max_age, call).await
    }

    /// Tells that a call failed, and gives the pause before the next.
    fn failed(&self, error: &StreamError, failures: u32) -> u64 {
        let pause_ms = FAILED.wait_ms(failures, self.chance.bits());
        self.emit_failed(error.to_string(), failures, pause_ms);
        pause_ms
    }

    fn emit_failed(&self, error: String, failures: u32, pause_ms: u64) {
        let shard = Arc::clone(&self.feed.shard);
        self.feed.events.emit(ShardEvent::FetchFailed {
            shard,
            error,
            failures,
            retry_in: pause_ms,
        });
    }

    /// Tells that records came.
    fn fetched(&self, records: usize, behind_ms: u64, took_ms: Option<u64>) {
        let shard = Arc::clone(&self.feed.shard);
        self.feed.events.emit(ShardEvent::Fetched {
            shard,
            records,
            behind_latest: behind_ms,
            took: took_ms,
        });
    }
}
