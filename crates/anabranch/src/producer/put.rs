//! `Producer`, the handle through which an application puts records.

use super::config::ProducerBuilder;
use super::input_buffer::SmallRecord;
use super::outcome::BulkTicket;
use super::outcome::Ticket;
use super::queue::{Command, InputQueue};
use super::record::{Bulk, PutBulkError, TryPutBulkError};
use super::record::{NewRecord, PutError, TryPutError};
use super::report::ProducerId;
use super::report::{ProducerCounters, ProducerStats};
use crate::clock::Clock;
use anabranch_model::ids::StreamName;
use anabranch_model::produce::OrderingKey;
use anabranch_model::record::PartitionKey;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Puts records into one stream. Clones share one producer.
///
/// The records of a key are placed in the order in which their puts were accepted. That is the
/// order of the calls if each is awaited before the next.
///
/// Call [`Producer::close`] at the end. If the last clone is dropped without it, records without an
/// outcome are abandoned, and an event reports their number.
#[derive(Debug, Clone)]
pub struct Producer {
    stream: StreamName,
    id: ProducerId,
    /// Queue to the driver.
    intake: Arc<InputQueue>,
    /// Maximum size of a record, in bytes of key and data.
    record_max_bytes: usize,
    clock: Clock,
    counts: Arc<ProducerCounters>,
    /// The driver task. Dropping the last clone stops it.
    _task: Arc<JoinSet<()>>,
}

/// Number of records by outcome: of all records of a producer, or of a bulk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PutSummary {
    /// Records that are in the stream.
    pub placed: u64,
    /// Records that are not in the stream.
    pub rejected: u64,
    /// Records that may or may not be in the stream.
    pub unknown: u64,
}

impl PutSummary {
    /// Returns true if every record was placed.
    pub fn is_complete(&self) -> bool {
        self.rejected == 0 && self.unknown == 0
    }
}

/// Consumes task budget after a refused put, so that a loop of refused puts yields to other tasks.
#[inline]
async fn yield_now<T, E>(put: Result<T, E>) -> Result<T, E> {
    if put.is_err() {
        tokio::task::coop::consume_budget().await;
    }
    put
}

impl Producer {
    /// Returns a builder of a producer for `stream`, a name or an ARN. Nothing is sent before
    /// [`ProducerBuilder::start`].
    #[expect(clippy::new_ret_no_self, reason = "a builder does nothing until it is started")]
    pub fn new(stream: impl Into<StreamName>) -> ProducerBuilder {
        ProducerBuilder::new(stream.into())
    }

    pub(super) fn of(
        stream: StreamName,
        id: ProducerId,
        intake: Arc<InputQueue>,
        record_max_bytes: usize,
        clock: Clock,
        counts: Arc<ProducerCounters>,
        task: JoinSet<()>,
    ) -> Self {
        Self { stream, id, intake, record_max_bytes, clock, counts, _task: Arc::new(task) }
    }

    /// Returns the stream, as passed to [`Producer::new`].
    pub fn stream(&self) -> &StreamName {
        &self.stream
    }

    /// Returns the id of this producer in events and metrics.
    pub fn id(&self) -> &ProducerId {
        &self.id
    }

    /// Puts a record. Waits for free buffer space. Await the ticket for the outcome.
    ///
    /// The key and data of a small record are copied; larger ones are kept without a copy. This is
    /// why both arguments must be available as a reference and by conversion. Dropping the future
    /// before it returns puts nothing.
    pub async fn put(
        &self,
        key: impl AsRef<str> + Into<PartitionKey>,
        data: impl AsRef<[u8]> + Into<Bytes>,
    ) -> Result<Ticket, PutError> {
        self.intake.pause_if_crowded().await;
        let put = match self.put_small(key.as_ref(), data.as_ref()) {
            Ok(None) => self.put_or_wait(NewRecord::new(key, data)).await,
            Ok(Some(ticket)) => Ok(ticket),
            Err(why) => Err(why),
        };
        yield_now(put).await
    }

    /// Puts a record, as [`Producer::put`] does. The record may have an explicit hash key.
    pub async fn put_record(&self, record: NewRecord) -> Result<Ticket, PutError> {
        self.intake.pause_if_crowded().await;
        yield_now(self.put_or_wait(record).await).await
    }

    /// Puts a record at once, or after waiting for free space.
    async fn put_or_wait(&self, record: NewRecord) -> Result<Ticket, PutError> {
        match self.try_put_record(record) {
            Ok(ticket) => Ok(ticket),
            Err(TryPutError::Refused(why)) => Err(why),
            Err(TryPutError::Full(record)) => self.put_after_wait(record).await,
        }
    }

    /// Puts a record if it is small and there is free space.
    #[inline]
    fn put_small(&self, key: &str, data: &[u8]) -> Result<Option<Ticket>, PutError> {
        let Some(small) = SmallRecord::of(key.as_bytes(), data) else { return Ok(None) };
        small.check(self.record_max_bytes)?;
        self.intake.push_small(small)
    }

    /// Waits for free space, and puts the record.
    async fn put_after_wait(&self, record: NewRecord) -> Result<Ticket, PutError> {
        let cost = self.intake.limit.clamp(record.cost());
        self.wait_for_space(cost).await?;
        let ticket = self.intake.push(record, cost).ok_or(PutError::Closed)?;
        self.wake_next();
        Ok(ticket)
    }

    /// Waits until `cost` bytes are free, and reserves them.
    async fn wait_for_space(&self, cost: u32) -> Result<(), PutError> {
        self.intake.wake.note_waiter();
        self.intake.limit.reserve(cost).await
    }

    /// Notes a waiter after a put that had to wait. Other puts may wait for the space that its
    /// record now holds, so it must not linger.
    fn wake_next(&self) {
        self.intake.wake.note_waiter();
    }

    /// Puts many records at once, in order. Waits for free buffer space for all of them. Await the
    /// ticket for all outcomes. No record of another put comes between them.
    ///
    /// If the stream does not accept one of the records, the whole bulk is refused and returned. A
    /// bulk larger than the buffer waits until the buffer is empty, and then takes all of it. An
    /// empty bulk is complete at once. Dropping the future before it returns puts nothing.
    pub async fn put_bulk(&self, bulk: Bulk) -> Result<BulkTicket, PutBulkError> {
        self.intake.pause_if_crowded().await;
        yield_now(self.put_bulk_or_wait(bulk).await).await
    }

    /// Puts many records at once, or after waiting for free space.
    async fn put_bulk_or_wait(&self, bulk: Bulk) -> Result<BulkTicket, PutBulkError> {
        let cost = match self.bulk_cost(&bulk) {
            Ok(Some(cost)) => cost,
            Ok(None) => return Ok(BulkTicket::of_nothing(&self.intake.wake)),
            Err((at, why)) => return Err(PutBulkError { at: Some(at), why, bulk }),
        };
        let waits = match self.intake.try_reserve(cost) {
            Ok(there) => !there,
            Err(_) => return Err(PutBulkError::closed(bulk)),
        };
        if waits && self.wait_for_space(cost).await.is_err() {
            return Err(PutBulkError::closed(bulk));
        }
        let ticket = self.intake.push_bulk(bulk, cost).map_err(PutBulkError::closed)?;
        if waits {
            self.wake_next();
        }
        Ok(ticket)
    }

    /// Puts many records without waiting, if there is free buffer space for all of them. A bulk
    /// larger than the buffer needs an empty buffer.
    pub fn try_put_bulk(&self, bulk: Bulk) -> Result<BulkTicket, TryPutBulkError> {
        let cost = match self.bulk_cost(&bulk) {
            Ok(Some(cost)) => cost,
            Ok(None) => return Ok(BulkTicket::of_nothing(&self.intake.wake)),
            Err((at, why)) => return Err(PutBulkError { at: Some(at), why, bulk }.into()),
        };
        match self.intake.try_reserve(cost) {
            Ok(true) => Ok(self.intake.push_bulk(bulk, cost).map_err(PutBulkError::closed)?),
            Ok(false) => Err(TryPutBulkError::Full(bulk)),
            Err(_) => Err(PutBulkError::closed(bulk).into()),
        }
    }

    /// Returns the buffer bytes that a bulk needs; `None` if it is empty. Fails with the index of
    /// the first record that the stream does not accept.
    fn bulk_cost(&self, bulk: &Bulk) -> Result<Option<u32>, (usize, PutError)> {
        let cost = bulk.check(self.record_max_bytes)?;
        Ok((!bulk.is_empty()).then(|| self.intake.limit.clamp(cost)))
    }

    /// Puts a record without waiting, if there is free buffer space. While other threads put too,
    /// it may miss space that is just being freed.
    pub fn try_put(
        &self,
        key: impl AsRef<str> + Into<PartitionKey>,
        data: impl AsRef<[u8]> + Into<Bytes>,
    ) -> Result<Ticket, TryPutError> {
        match self.put_small(key.as_ref(), data.as_ref())? {
            Some(ticket) => Ok(ticket),
            None => self.try_put_record(NewRecord::new(key, data)),
        }
    }

    /// Puts a record without waiting, as [`Producer::try_put`] does. The record may have an
    /// explicit hash key.
    #[inline]
    pub fn try_put_record(&self, record: NewRecord) -> Result<Ticket, TryPutError> {
        record.check(self.record_max_bytes)?;
        let cost = self.intake.limit.clamp(record.cost());
        if !self.intake.try_reserve(cost)? {
            return Err(TryPutError::Full(record));
        }
        Ok(self.intake.push(record, cost).ok_or(PutError::Closed)?)
    }

    /// Sends everything put so far without lingering, and waits until all of it has an outcome.
    pub async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.intake.send_command(Command::Flush(done)).is_ok() {
            // The driver only ends after every record has an outcome.
            let _ = flushed.await;
        }
    }

    /// Resumes a stopped key. Returns `false` if it was not stopped.
    ///
    /// Records put from now on have no order relative to the records that stopped the key.
    ///
    /// If more keys stopped than [`ProducerBuilder::with_max_stopped_keys`] allows, every key is
    /// stopped. This call then resumes the key even if [`Producer::stopped_keys`] does not contain
    /// it, for as many keys as that setting allows. Beyond them it returns `false`.
    /// [`Producer::resume_all`] resumes all keys.
    pub async fn resume(&self, key: impl Into<PartitionKey>) -> bool {
        self.resume_key(OrderingKey { key: key.into(), explicit: None }).await
    }

    /// Resumes a stopped key, as [`Producer::resume`] does. The key may have an explicit hash key.
    pub async fn resume_key(&self, key: OrderingKey) -> bool {
        let (done, resumed) = oneshot::channel();
        self.intake.send_command(Command::Resume(key, done)).is_ok()
            && resumed.await.unwrap_or(false)
    }

    /// Resumes all stopped keys, also after more keys stopped than
    /// [`ProducerBuilder::with_max_stopped_keys`] allows. Returns the number of keys that were
    /// remembered as stopped.
    ///
    /// Records put from now on have no order relative to records that were rejected before or whose
    /// outcome is unknown.
    pub async fn resume_all(&self) -> usize {
        let (done, resumed) = oneshot::channel();
        match self.intake.send_command(Command::ResumeAll(done)) {
            Ok(()) => resumed.await.unwrap_or(0),
            Err(_) => 0,
        }
    }

    /// Returns the stopped keys. If the whole producer is stopped, returns only the keys that were
    /// remembered, at most [`ProducerBuilder::with_max_stopped_keys`].
    pub async fn stopped_keys(&self) -> Vec<OrderingKey> {
        let (done, keys) = oneshot::channel();
        match self.intake.send_command(Command::StoppedKeys(done)) {
            Ok(()) => keys.await.unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    /// Returns the counts since the start.
    pub fn stats(&self) -> ProducerStats {
        self.counts.stats()
    }

    /// Closes the producer: accepts no more records, sends the rest, and waits until all have an
    /// outcome, for at most `deadline`. After it, records that were never sent are rejected, and
    /// the others are unknown.
    ///
    /// The summary covers every record accepted since the start.
    pub async fn close(&self, deadline: Duration) -> PutSummary {
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        let until_ms = self.clock.now_ms().saturating_add(deadline_ms);
        let (done, closed) = oneshot::channel();
        let asked = self.intake.send_command(Command::Close { until_ms, done }).is_ok();
        let account = if asked { closed.await.ok() } else { None };
        account.unwrap_or_else(|| {
            let ProducerStats { placed, rejected, unknown, .. } = self.stats();
            PutSummary { placed, rejected, unknown }
        })
    }
}
