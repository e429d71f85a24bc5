//! The producer as its user holds it.

use super::config::ProducerBuilder;
use super::config::ProducerId;
use super::input_buffer::SmallRecord;
use super::outcome::BulkTicket;
use super::outcome::Ticket;
use super::queue::{Command, InputQueue};
use super::record::{Bulk, PutBulkError, TryPutBulkError};
use super::record::{NewRecord, PutError, TryPutError};
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
/// The records of a key are placed in the order in which their puts were accepted: that of the
/// calls, where each is awaited before the next.
///
/// Close it. When the last clone is dropped without [`Producer::close`], what is not yet placed is
/// given up, and an event says how much that was.
#[derive(Debug, Clone)]
pub struct Producer {
    /// The stream.
    stream: StreamName,
    /// What events and metrics call it.
    id: ProducerId,
    /// Where records are handed over.
    intake: Arc<InputQueue>,
    /// The largest record that the stream takes, in bytes of key and data.
    record_max_bytes: usize,
    /// The time.
    clock: Clock,
    /// The counts.
    counts: Arc<ProducerCounters>,
    /// Owns the driver: dropped with the last clone.
    _task: Arc<JoinSet<()>>,
}

/// What became of all records of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PutSummary {
    /// Records that are in the stream.
    pub placed: u64,
    /// Records that are not.
    pub rejected: u64,
    /// Records of which nobody knows.
    pub unknown: u64,
}

impl PutSummary {
    /// Whether every record was placed.
    pub fn is_complete(&self) -> bool {
        self.rejected == 0 && self.unknown == 0
    }
}

/// Whoever is refused again and again lets others run too.
#[inline]
async fn yield_now<T, E>(put: Result<T, E>) -> Result<T, E> {
    if put.is_err() {
        tokio::task::coop::consume_budget().await;
    }
    put
}

impl Producer {
    /// A producer for this stream. Nothing happens before it is started.
    #[expect(clippy::new_ret_no_self, reason = "what comes back is a producer to be")]
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

    /// The stream.
    pub fn stream(&self) -> &StreamName {
        &self.stream
    }

    /// What events and metrics call this producer.
    pub fn id(&self) -> &ProducerId {
        &self.id
    }

    /// Puts a record. Waits for room in the buffer; the ticket then waits for the outcome.
    ///
    /// The key and the data of a small record are copied, those of others are kept, so both are
    /// asked for in both ways: borrowed and whole. Cancelling it before it returns puts nothing.
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

    /// Puts a record, with everything that a record can have.
    pub async fn put_record(&self, record: NewRecord) -> Result<Ticket, PutError> {
        self.intake.pause_if_crowded().await;
        yield_now(self.put_or_wait(record).await).await
    }

    /// Puts a record now, or once there is room.
    async fn put_or_wait(&self, record: NewRecord) -> Result<Ticket, PutError> {
        match self.try_put_record(record) {
            Ok(ticket) => Ok(ticket),
            Err(TryPutError::Refused(why)) => Err(why),
            Err(TryPutError::Full(record)) => self.put_after_wait(record).await,
        }
    }

    /// Puts a record if it is small and there is room now.
    #[inline]
    fn put_small(&self, key: &str, data: &[u8]) -> Result<Option<Ticket>, PutError> {
        let Some(small) = SmallRecord::of(key.as_bytes(), data) else { return Ok(None) };
        small.check(self.record_max_bytes)?;
        self.intake.push_small(small)
    }

    /// Waits for a record's room, and puts it.
    async fn put_after_wait(&self, record: NewRecord) -> Result<Ticket, PutError> {
        let cost = self.intake.limit.clamp(record.cost());
        self.wait_for_space(cost).await?;
        let ticket = self.intake.push(record, cost).ok_or(PutError::Closed)?;
        self.wake_next();
        Ok(ticket)
    }

    /// Waits for so much room.
    async fn wait_for_space(&self, cost: u32) -> Result<(), PutError> {
        self.intake.wake.note_waiter();
        self.intake.limit.reserve(cost).await
    }

    /// What is put after a wait for room may be what others behind it wait for.
    fn wake_next(&self) {
        self.intake.wake.note_waiter();
    }

    /// Puts many records at once, in their order. Waits for room for all of them; the ticket then
    /// waits for all outcomes. They are put together: nothing that others put comes between.
    ///
    /// One that the stream does not take has the whole bulk refused, and given back. A bulk that is
    /// larger than the buffer waits until that is empty, and then takes all of it. One without
    /// records is over at once. Cancelling it before it returns puts nothing.
    pub async fn put_bulk(&self, bulk: Bulk) -> Result<BulkTicket, PutBulkError> {
        self.intake.pause_if_crowded().await;
        yield_now(self.put_bulk_or_wait(bulk).await).await
    }

    /// Puts many records now, or once there is room.
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

    /// Puts many records if there is room for all of them now. A bulk that is larger than the buffer
    /// needs all of it.
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

    /// What a bulk takes of the room: nothing if it has no records. Otherwise which record the
    /// stream does not take, and why.
    fn bulk_cost(&self, bulk: &Bulk) -> Result<Option<u32>, (usize, PutError)> {
        let cost = bulk.check(self.record_max_bytes)?;
        Ok((!bulk.is_empty()).then(|| self.intake.limit.clamp(cost)))
    }

    /// Puts a record if there is room now. While other threads put too, room that is being freed may
    /// not be found.
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

    /// Puts a record if there is room now, with everything that a record can have.
    #[inline]
    pub fn try_put_record(&self, record: NewRecord) -> Result<Ticket, TryPutError> {
        record.check(self.record_max_bytes)?;
        let cost = self.intake.limit.clamp(record.cost());
        if !self.intake.try_reserve(cost)? {
            return Err(TryPutError::Full(record));
        }
        Ok(self.intake.push(record, cost).ok_or(PutError::Closed)?)
    }

    /// Sends what was put so far without waiting for more, and returns when all of it has its
    /// outcome.
    pub async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.intake.send_command(Command::Flush(done)).is_ok() {
            // A driver that ends has given every record its outcome.
            let _ = flushed.await;
        }
    }

    /// Lets a stopped key go on. `false` if it did not stand stopped.
    ///
    /// Records that are put from now on have no order against the records that stopped the key.
    ///
    /// After more keys stopped than [`ProducerBuilder::with_max_stopped_keys`] allows, every key is stopped.
    /// Then this lets the one key go on, whether it is among [`Producer::stopped_keys`] or not, for
    /// as many keys as that option allows; `false` beyond them. [`Producer::resume_all`] lets all
    /// go on.
    pub async fn resume(&self, key: impl Into<PartitionKey>) -> bool {
        self.resume_key(OrderingKey { key: key.into(), explicit: None }).await
    }

    /// Lets a stopped key go on that was put with an explicit hash key.
    pub async fn resume_key(&self, key: OrderingKey) -> bool {
        let (done, resumed) = oneshot::channel();
        self.intake.send_command(Command::Resume(key, done)).is_ok()
            && resumed.await.unwrap_or(false)
    }

    /// Lets all stopped keys go on, also after the set of stopped keys overflowed. Returns how many
    /// of them were known by name.
    ///
    /// Records that are put from now on have no order against those that were rejected before, or
    /// whose outcome is unknown.
    pub async fn resume_all(&self) -> usize {
        let (done, resumed) = oneshot::channel();
        match self.intake.send_command(Command::ResumeAll(done)) {
            Ok(()) => resumed.await.unwrap_or(0),
            Err(_) => 0,
        }
    }

    /// The keys that stand stopped; when the whole producer does, those that there was room for.
    pub async fn stopped_keys(&self) -> Vec<OrderingKey> {
        let (done, keys) = oneshot::channel();
        match self.intake.send_command(Command::StoppedKeys(done)) {
            Ok(()) => keys.await.unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    /// Counts since the start.
    pub fn stats(&self) -> ProducerStats {
        self.counts.stats()
    }

    /// Takes no more records, sends what is there, and ends when all have their outcome, at the
    /// latest after `deadline`. What was never sent is then rejected, the rest is unknown.
    ///
    /// The account covers every record that was accepted since the start.
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
