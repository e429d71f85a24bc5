//! Cache of stream summaries: shards that need the same summary share one call.
//!
//! `DescribeStreamSummary` is limited to 20 calls a second per account, and a worker may read a
//! thousand shards.

use super::api::{StreamError, StreamSummary};
use anabranch_model::ids::StreamName;
use anabranch_model::retry::Fault;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

/// The last answer for each stream. One of the waiting callers makes the call.
#[derive(Debug, Default)]
pub(crate) struct Summaries {
    /// The inner lock is held during a call, and delays only callers of the same stream.
    streams: Mutex<BTreeMap<StreamName, Arc<tokio::sync::Mutex<Option<CachedSummary>>>>>,
}

/// Result of a call.
#[derive(Debug)]
struct CachedSummary {
    /// Start of the call, by the worker's clock.
    began_ms: u64,
    outcome: Result<StreamSummary, SharedError>,
}

/// Maximum age of an answer, in milliseconds since its call began. With 0, the call must begin
/// after the question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaxAge {
    /// Maximum age of a summary.
    pub(crate) summary_ms: u64,
    /// Maximum age of a failure.
    pub(crate) failure_ms: u64,
}

impl MaxAge {
    /// Accepts only a call that begins after the question.
    pub(crate) const FRESH: Self = Self { summary_ms: 0, failure_ms: 0 };

    fn allows(self, answer: &CachedSummary, asked_ms: u64) -> bool {
        let age_ms = if answer.outcome.is_ok() { self.summary_ms } else { self.failure_ms };
        answer.began_ms.saturating_add(age_ms) > asked_ms
    }
}

impl Summaries {
    /// Returns the summary of a stream. Makes `call` unless the last answer is recent enough.
    /// Callers that wait for the same call share its answer.
    pub(crate) async fn get(
        &self,
        stream: &StreamName,
        now_ms: impl Fn() -> u64,
        max_age: MaxAge,
        call: impl Future<Output = Result<StreamSummary, StreamError>>,
    ) -> Result<StreamSummary, StreamError> {
        let asked_ms = now_ms();
        let last = self.of(stream);
        let mut last = last.lock().await;
        if let Some(answer) = last.as_ref().filter(|answer| max_age.allows(answer, asked_ms)) {
            return answer.outcome.clone().map_err(SharedError::into_error);
        }
        let began_ms = now_ms();
        let outcome = call.await;
        let shared = outcome.as_ref().map(Clone::clone).map_err(SharedError::of);
        *last = Some(CachedSummary { began_ms, outcome: shared });
        outcome
    }

    fn of(&self, stream: &StreamName) -> Arc<tokio::sync::Mutex<Option<CachedSummary>>> {
        // An insertion is complete before the lock is released, so a panic cannot leave half of
        // one.
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.entry(stream.clone()).or_default().clone()
    }
}

/// An error that all callers waiting for the call receive.
#[derive(Clone, Debug)]
pub(crate) struct SharedError {
    fault: Fault,
    operation: &'static str,
    target: String,
    detail: String,
}

impl SharedError {
    /// Copies everything except the source, whose text is in `detail`.
    pub(crate) fn of(error: &StreamError) -> Self {
        let (target, detail) = (error.target.clone(), error.detail.clone());
        Self { fault: error.fault, operation: error.operation, target, detail }
    }

    /// Converts it back to an error without a source.
    pub(crate) fn into_error(self) -> StreamError {
        let Self { fault, operation, target, detail } = self;
        StreamError { fault, operation, target, detail, source: None }
    }
}

#[cfg(test)]
mod tests {
    use super::super::api::StreamStatus;
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn summary(open_shards: usize) -> StreamSummary {
        StreamSummary {
            arn: String::new(),
            status: StreamStatus::Active,
            created_ms: 0,
            retention_ms: 0,
            max_record_bytes: 0,
            on_demand: false,
            ignores_keys: false,
            open_shards,
        }
    }

    fn throttled() -> StreamError {
        let (fault, operation) = (Fault::Throttled, "DescribeStreamSummary");
        StreamError { fault, operation, target: "s".into(), detail: "slow".into(), source: None }
    }

    #[tokio::test]
    async fn an_answer_is_given_while_it_is_young_enough() {
        let (summaries, clock) = (Summaries::default(), AtomicU64::new(0));
        let stream = StreamName::from("s");
        let minute = MaxAge { summary_ms: 60_000, failure_ms: 1_000 };
        // Time, maximum age, result of a call if one is made, and expected result.
        for (at_ms, max_age, call, want) in [
            (0, minute, Ok(1), Some(1)),
            (0, MaxAge::FRESH, Ok(2), Some(2)),
            (59_999, minute, Ok(3), Some(2)),
            (60_000, minute, Ok(4), Some(4)),
            (60_001, MaxAge::FRESH, Err(()), None),
            (60_002, minute, Ok(5), None),
            (61_001, minute, Ok(6), Some(6)),
        ] {
            clock.store(at_ms, Ordering::Relaxed);
            let call = std::future::ready(call.map(summary).map_err(|()| throttled()));
            let now_ms = || clock.load(Ordering::Relaxed);
            let got = summaries.get(&stream, now_ms, max_age, call).await;
            assert_eq!(got.ok().map(|summary| summary.open_shards), want, "at {at_ms}");
        }
    }
}
