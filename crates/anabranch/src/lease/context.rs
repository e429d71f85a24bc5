//! What every part of a coordinator works with.

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

// Which rows can't be read, so that each is reported once and not at every poll.

/// Rows that can't be read and that were reported, by whose they are: a stream's, or the workers'.
#[derive(Debug, Default)]
pub(crate) struct ReportedRows(Mutex<BTreeMap<Option<StreamName>, BTreeSet<String>>>);

impl ReportedRows {
    /// Returns the rows that were not reported before. A row that is readable again is forgotten.
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

// Streams that seem to be gone or another's: looked into at once, not at the next audit.

/// Streams that are to be looked into.
#[derive(Debug, Default)]
pub(crate) struct SuspectStreams {
    /// Which.
    streams: Mutex<BTreeSet<StreamName>>,
    /// Wakes whoever looks into them.
    wake: Notify,
}

impl SuspectStreams {
    /// A reader of this stream was told that its shard is not there, and the stream not either.
    pub(crate) fn add(&self, stream: &StreamName) {
        self.lock().insert(stream.clone());
        self.wake.notify_one();
    }

    /// Waits until there are some, and takes them out.
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
        // Each change is one insertion, so a panic leaves no half of one.
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
