//! Fetching of records: by polling, or pushed by enhanced fan-out.

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
use std::time::Duration;

/// Backoff after a failed call.
pub(super) const FAILED: Backoff = Backoff::new(200, 10_000);
/// Maximum duration of one call in milliseconds, whatever timeouts the API client has.
const CALL_MS: u64 = 40_000;
/// Number of consecutive failures after which expired credentials and invalid requests count as
/// final; about half a minute. Until then the credentials may be renewed, and a fresh iterator may
/// fix the request.
const DOUBTS: u32 = 8;
/// Minimum retention of a stream. Records that waited less cannot have expired.
const KEPT_MS: u64 = limits::RETENTION_MIN_HOURS as u64 * 3_600_000;

/// Maximum age of a cached summary or failure when the retention is looked up.
const RETENTION_AGE: MaxAge = MaxAge { summary_ms: 600_000, failure_ms: 60_000 };

/// Method by which records are fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FetchMode {
    /// `GetRecords`: five calls and 2 MB per second and shard, shared by all applications.
    #[default]
    Poll,
    /// `SubscribeToShard`: 2 MB per second for each shard and application, pushed within
    /// milliseconds, at an extra charge. The consumer is registered under the application's name.
    FanOut,
}

/// Reason why fetching ended.
#[derive(Debug)]
pub(crate) enum FetchEnd {
    /// The closed shard has no more records. These are its children.
    ShardEnd(Vec<ChildShard>),
    /// The service reports that the shard does not exist.
    Missing,
    /// The service refuses the request with an error that does not pass by itself. Only readers
    /// with `ends_refused` end this way.
    Refused(StreamError),
    /// The reader was stopped, or its lanes were.
    Stopped,
}

/// Returns true if an error that occurred `failures` times in a row does not pass by itself.
pub(crate) fn is_final(error: &StreamError, failures: u32) -> bool {
    match error.fault {
        Fault::CredentialsExpired | Fault::Invalid => failures >= DOUBTS,
        // The caller finds out what is missing.
        Fault::Missing => false,
        fault => !fault.is_retryable(),
    }
}

/// Runs a call with a timeout of [`CALL_MS`], after which it fails with [`Fault::ReplyLost`].
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

/// Context for fetching one shard, shared by both methods.
pub(super) struct FetchContext<A> {
    pub(super) api: Arc<A>,
    /// Destination of the records.
    pub(super) feed: Dispatcher,
    /// Timestamp for LATEST, resolved by the first read from there.
    pub(super) latest: Arc<LatestResolver>,
    /// Stream summaries, shared by all shards.
    pub(super) summaries: Arc<Summaries>,
    pub(super) clock: Clock,
    pub(super) chance: Rng,
}

impl<A: StreamApi> FetchContext<A> {
    /// Runs a call on this shard with the timeout of [`with_timeout`].
    async fn in_time<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, StreamError>>,
    ) -> Result<T, StreamError> {
        with_timeout(&self.clock, operation, &self.feed.shard, call).await
    }

    /// Replaces LATEST by its timestamp; returns other positions unchanged.
    async fn pin_latest(&self, from: ReadFrom) -> Result<ReadFrom, StreamError> {
        if from != ReadFrom::Latest {
            return Ok(from);
        }
        let moment = self.latest.resolve(&*self.api, &self.feed.shard, &self.clock);
        Ok(ReadFrom::AtTimestamp(moment.await?))
    }

    /// Updates the tracker with a reply, and emits an event if records expired before it. The first
    /// item of `reply` is a time at or before the reply.
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

    /// Returns the retention of the stream, if the service reports it.
    async fn retention_ms(&self) -> Option<u64> {
        Some(self.summary(RETENTION_AGE).await.ok()?.retention_ms)
    }

    /// Returns the stream's summary, from the cache if it is recent enough.
    async fn summary(&self, max_age: MaxAge) -> Result<StreamSummary, StreamError> {
        let stream = &self.feed.shard.stream;
        let call = self.in_time("DescribeStreamSummary", self.api.describe(stream));
        self.summaries.get(stream, || self.clock.now_ms(), max_age, call).await
    }

    /// Emits an event for a failed call, and returns the pause before the next one in milliseconds.
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
            retry_in: Duration::from_millis(pause_ms),
        });
    }

    /// Emits an event for received records.
    fn fetched(&self, records: usize, behind_ms: u64, took_ms: Option<u64>) {
        let shard = Arc::clone(&self.feed.shard);
        self.feed.events.emit(ShardEvent::Fetched {
            shard,
            records,
            behind_latest: Duration::from_millis(behind_ms),
            took: took_ms.map(Duration::from_millis),
        });
    }
}
