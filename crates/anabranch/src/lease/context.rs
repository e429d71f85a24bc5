//! The context that all parts of a coordinator share.

use super::settings::CoordinatorSettings;
use crate::clock::{Clock, Rng};
use crate::event::{Events, LeaseEvent};
use crate::lease::write_retry::{WriteResult, WriteRetry};
use crate::lease::{LeaseStore, StoreError, StorePoll};
use crate::stream::api::{StreamApi, StreamError, StreamSummary};
use crate::stream::shard_lists::ShardLists;
use crate::stream::summaries::{MaxAge, Summaries};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{LeaseKey, LeaseListing, StreamFacts, UnreadableRow, Write};
use anabranch_model::retry::Fault;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Time limit of a stream call, as a multiple of the call timeout: a shard list has several pages.
const PAGES: u64 = 5;

/// Clients, settings and shared caches of one coordinator.
#[derive(Debug)]
pub(crate) struct LeaseContext<S, A> {
    pub(crate) store: Arc<S>,
    pub(crate) api: Arc<A>,
    pub(crate) settings: CoordinatorSettings,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) events: Events,
    /// Stream summaries, shared by all shards.
    pub(crate) summaries: Arc<Summaries>,
    /// Shard lists, shared by the shards that wait for rows of other shards.
    pub(crate) shard_lists: ShardLists,
    /// Streams that a shard reader found to be deleted or recreated.
    pub(crate) suspect_streams: SuspectStreams,
    /// Rows that can't be read and that were already reported.
    pub(crate) unreadable_rows: ReportedRows,
}

impl<S: LeaseStore, A: StreamApi> LeaseContext<S, A> {
    /// Requests the stream's summary. Earlier answers are not reused: the stream may have been
    /// recreated since.
    pub(crate) async fn describe(&self, stream: &StreamName) -> Result<StreamSummary, StreamError> {
        let call = self.call_stream(stream, self.api.describe(stream));
        self.summaries.get(stream, || self.clock.now_ms(), MaxAge::FRESH, call).await
    }
}

impl<S: LeaseStore, A> LeaseContext<S, A> {
    /// Returns the application's facts about a stream, if there are any.
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

    /// Returns the time limit of one store call, in milliseconds. It is at most a quarter of the
    /// lease time, so that a second call still fits.
    fn store_timeout_ms(&self) -> u64 {
        self.settings.call_timeout.min(self.settings.lease_time_ms / 4).max(1)
    }

    pub(crate) fn emit(&self, event: LeaseEvent) {
        self.events.emit(event);
    }

    /// Emits an event for a failed store call.
    pub(crate) fn emit_store_failure(&self, what: &'static str, error: &StoreError) {
        self.emit(LeaseEvent::StoreCallFailed { what, error: error.to_string() });
    }

    /// Emits an event for a failed stream call.
    pub(crate) fn emit_stream_failure(&self, stream: &StreamName, error: &StreamError) {
        self.emit(LeaseEvent::StreamCallFailed {
            stream: stream.clone(),
            error: error.to_string(),
        });
    }

    /// Awaits a read of the store, and fails if it exceeds the store timeout.
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

    /// Awaits a stream call, and fails if it exceeds its time limit.
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
                operation: "call",
                target: stream.to_string(),
                detail: format!("no answer within {ask_ms} ms"),
                source: None,
            }),
        }
    }

    /// Retries a write until its result is known or `until_ms()` is reached.
    pub(crate) async fn write(&self, write: &Write, until_ms: impl Fn() -> u64) -> WriteResult {
        let (clock, chance) = (&self.clock, &self.rng);
        let settling = WriteRetry { clock, chance, call_ms: self.store_timeout_ms() };
        settling.run(&*self.store, write, until_ms).await
    }

    /// Attempts a write once. If there is no answer, the next poll shows the result.
    pub(crate) async fn write_once(&self, write: &Write) -> WriteResult {
        self.write(write, || 0).await
    }
}

// Rows that can't be read, so that each is reported once and not at every poll.

/// Unreadable rows that were already reported, by stream; `None` holds the worker rows.
#[derive(Debug, Default)]
pub(crate) struct ReportedRows(Mutex<BTreeMap<Option<StreamName>, BTreeSet<String>>>);

impl ReportedRows {
    /// Returns the rows that were not reported before. Forgets rows that have become readable.
    fn new_ones<'a>(
        &self,
        of: Option<&StreamName>,
        rows: impl Iterator<Item = (String, &'a str)>,
    ) -> Vec<(String, &'a str)> {
        let mut reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rows: BTreeMap<_, _> = rows.collect();
        let before = if rows.is_empty() {
            reported.remove(&of.cloned())
        } else {
            reported.insert(of.cloned(), rows.keys().cloned().collect())
        };
        let before = before.unwrap_or_default();
        rows.into_iter().filter(|(row, _)| !before.contains(row)).collect()
    }
}

impl<S: LeaseStore, A> LeaseContext<S, A> {
    /// Lists the rows of a stream, and reports those that can't be read.
    pub(super) async fn list(&self, stream: &StreamName) -> Result<LeaseListing, StoreError> {
        let listing = self.read_store(self.store.list(stream)).await?;
        self.report(stream, &listing.unreadable);
        Ok(listing)
    }

    /// Lists the rows of some streams for the planner, and reports those that can't be read.
    pub(super) async fn list_recent(
        &self,
        streams: &[StreamName],
    ) -> Result<BTreeMap<StreamName, LeaseListing>, StoreError> {
        let listings = self.read_store(self.store.list_recent(streams)).await?;
        for (stream, listing) in &listings {
            self.report(stream, &listing.unreadable);
        }
        Ok(listings)
    }

    /// Polls the store, and reports workers whose rows can't be read.
    pub(super) async fn poll(&self) -> Result<StorePoll, StoreError> {
        let look = self.read_store(self.store.poll()).await?;
        let rows = look.unreadable.iter().map(|row| (row.key.to_string(), row.why.as_str()));
        self.report_new(None, rows);
        Ok(look)
    }

    fn report(&self, stream: &StreamName, rows: &[UnreadableRow<ShardId>]) {
        let key = |shard: &ShardId| LeaseKey { stream: stream.clone(), shard: shard.clone() };
        let rows = rows.iter().map(|row| (key(&row.key).to_string(), row.why.as_str()));
        self.report_new(Some(stream), rows);
    }

    fn report_new<'a>(
        &self,
        of: Option<&StreamName>,
        rows: impl Iterator<Item = (String, &'a str)>,
    ) {
        for (row, why) in self.unreadable_rows.new_ones(of, rows) {
            self.emit(LeaseEvent::RowUnreadable { row, why: why.to_owned() });
        }
    }
}

// Streams that may have been deleted or recreated. They are checked at once, not at the next audit.

/// Streams that are to be checked.
#[derive(Debug, Default)]
pub(crate) struct SuspectStreams {
    streams: Mutex<BTreeSet<StreamName>>,
    /// Wakes the task that checks them.
    wake: Notify,
}

impl SuspectStreams {
    /// Marks a stream that a reader found to be missing or recreated.
    pub(crate) fn add(&self, stream: &StreamName) {
        self.lock().insert(stream.clone());
        self.wake.notify_one();
    }

    /// Waits until there are suspect streams, and takes them out.
    pub(crate) async fn next(&self) -> BTreeSet<StreamName> {
        loop {
            let some = std::mem::take(&mut *self.lock());
            if !some.is_empty() {
                return some;
            }
            self.wake.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<StreamName>> {
        // Each change is one insertion, so a panic leaves a consistent set.
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
