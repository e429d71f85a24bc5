//! What every part of a coordinator works with.

use super::CoordinatorSettings;
use super::suspects::SuspectStreams;
use super::unreadable::ReportedRows;
use crate::clock::{Clock, Rng};
use crate::event::{Events, LeaseEvent};
use crate::lease::settle::{WriteResult, WriteRetry};
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::{StreamApi, StreamError, StreamSummary};
use crate::stream::shard_lists::ShardLists;
use crate::stream::summaries::{MaxAge, Summaries};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{StreamFacts, Write};
use anabranch_model::retry::Fault;
use std::sync::Arc;

/// How many times longer than a call of the store a call of a stream may take: a list has pages.
const PAGES: u64 = 5;

/// What every part of a coordinator works with.
#[derive(Debug)]
pub(crate) struct LeaseContext<S, A> {
    /// Where the leases are kept.
    pub(crate) store: Arc<S>,
    /// The streams.
    pub(crate) api: Arc<A>,
    /// What the coordinator was told.
    pub(crate) settings: CoordinatorSettings,
    /// The worker's clock.
    pub(crate) clock: Clock,
    /// The worker's chance.
    pub(crate) rng: Rng,
    /// Who wants to know.
    pub(crate) events: Events,
    /// The streams' summaries, which all shards share.
    pub(crate) summaries: Arc<Summaries>,
    /// Lists of the streams' shards, which the shards share that wait for other shards' rows.
    pub(crate) shard_lists: ShardLists,
    /// Streams that somebody who reads a shard found to be gone or another's.
    pub(crate) suspect_streams: SuspectStreams,
    /// Rows that can't be read and that were reported.
    pub(crate) unreadable_rows: ReportedRows,
}

impl<S: LeaseStore, A: StreamApi> LeaseContext<S, A> {
    /// The stream's summary, asked for from now on: what came before says nothing about a stream
    /// that may have been created again meanwhile.
    pub(crate) async fn describe(&self, stream: &StreamName) -> Result<StreamSummary, StreamError> {
        let call = self.call_stream(stream, self.api.describe(stream));
        self.summaries.get(stream, || self.clock.now_ms(), MaxAge::FRESH, call).await
    }
}

impl<S: LeaseStore, A> LeaseContext<S, A> {
    /// What the application knows of a stream.
    pub(crate) async fn facts(
        &self,
        stream: &StreamName,
    ) -> Result<Option<StreamFacts>, StoreError> {
        let application = self.read_store(self.store.application()).await?;
        application.facts(stream).map_err(|why| StoreError::UnreadableRow {
            store: "in use".to_owned(),
            row: format!("stream {stream}"),
            detail: why.to_owned(),
        })
    }

    /// The longest that one call of the store is waited for: there has to be time for another.
    fn store_timeout_ms(&self) -> u64 {
        self.settings.call_timeout.min(self.settings.lease_time_ms / 4).max(1)
    }

    /// Tells whoever listens.
    pub(crate) fn emit(&self, event: LeaseEvent) {
        self.events.emit(event);
    }

    /// Tells that the store did not do what it was asked.
    pub(crate) fn emit_store_failure(&self, what: &'static str, error: &StoreError) {
        self.emit(LeaseEvent::StoreCallFailed { what, error: error.to_string() });
    }

    /// Tells that a stream did not do what it was asked.
    pub(crate) fn emit_stream_failure(&self, stream: &StreamName, error: &StreamError) {
        self.emit(LeaseEvent::StreamCallFailed {
            stream: stream.clone(),
            error: error.to_string(),
        });
    }

    /// What a read of the store answers; one that takes too long is an error.
    pub(crate) async fn read_store<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let call_ms = self.store_timeout_ms();
        tokio::select! {
            biased;
            answer = call => answer,
            () = self.clock.sleep(call_ms) => Err(StoreError::Unreachable {
                store: "in use".into(),
                detail: format!("no answer within {call_ms} ms"),
                source: None,
            }),
        }
    }

    /// What a stream answers; one that takes too long is an error.
    pub(crate) async fn call_stream<T>(
        &self,
        stream: &StreamName,
        call: impl Future<Output = Result<T, StreamError>>,
    ) -> Result<T, StreamError> {
        let ask_ms = self.settings.call_timeout.saturating_mul(PAGES);
        tokio::select! {
            biased;
            answer = call => answer,
            () = self.clock.sleep(ask_ms) => Err(StreamError {
                fault: Fault::ReplyLost,
                operation: "a call",
                target: stream.to_string(),
                detail: format!("no answer within {ask_ms} ms"),
                source: None,
            }),
        }
    }

    /// Carries a write to its end, or until the moment that `until_ms` gives.
    pub(crate) async fn write(&self, write: &Write, until_ms: impl Fn() -> u64) -> WriteResult {
        let (clock, chance) = (&self.clock, &self.rng);
        let settling = WriteRetry { clock, chance, call_ms: self.store_timeout_ms() };
        settling.run(&*self.store, write, until_ms).await
    }

    /// Makes one attempt at a write. What became of an attempt without an answer, the next look
    /// shows.
    pub(crate) async fn write_once(&self, write: &Write) -> WriteResult {
        self.write(write, || 0).await
    }
}
