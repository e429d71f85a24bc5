//! The producer for threads: the same, with calls that block.

use super::config::ProducerBuilder;
use super::config::ProducerId;
use super::outcome::{BulkTicket, Outcomes};
use super::outcome::{Outcome, Ticket};
use super::put::{Producer, PutSummary};
use super::record::{Bulk, PutBulkError, TryPutBulkError};
use super::record::{NewRecord, PutError, TryPutError};
use super::report::ProducerStats;
use super::start::ProducerStartError;
use crate::stream::IntoStreamApi;
use anabranch_model::record::PartitionKey;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// A producer whose calls block the thread that makes them. It runs on a thread of its own, may be
/// used from many, and must not be used inside an async task. Clones share one producer.
#[derive(Debug, Clone)]
pub struct SyncProducer {
    /// The producer. Declared first, so that it ends before what it runs on.
    producer: Producer,
    /// What it runs on.
    runtime: Arc<Runtime>,
}

/// A put that was accepted.
#[derive(Debug)]
#[must_use = "the outcome of the record is learnt by waiting for its ticket"]
pub struct SyncTicket {
    ticket: Ticket,
    runtime: Arc<Runtime>,
}

impl SyncTicket {
    /// Blocks until the record has its outcome.
    pub fn wait(self) -> Outcome {
        self.runtime.block_on(self.ticket)
    }

    /// The outcome, if it is there already.
    pub fn try_outcome(&self) -> Option<Outcome> {
        self.ticket.try_outcome()
    }
}

/// A bulk that was accepted.
#[derive(Debug)]
#[must_use = "the outcomes of the records are learnt by waiting for their ticket"]
pub struct SyncBulkTicket {
    ticket: BulkTicket,
    runtime: Arc<Runtime>,
}

impl SyncBulkTicket {
    /// Blocks until all records have their outcomes.
    pub fn wait(self) -> Outcomes {
        self.runtime.block_on(self.ticket)
    }

    /// The outcomes, if all of them are there already.
    pub fn try_outcomes(&self) -> Option<Outcomes> {
        self.ticket.try_outcomes()
    }
}

impl SyncProducer {
    /// Starts a producer on a thread of its own.
    ///
    /// # Panics
    ///
    /// If the system gives no thread.
    pub fn start<K: IntoStreamApi>(
        builder: ProducerBuilder<K>,
    ) -> Result<Self, ProducerStartError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("anabranch-producer")
            .enable_all()
            .build()
            .expect("a runtime needs one thread, and the system has none to give");
        let producer = runtime.block_on(builder.start())?;
        Ok(Self { producer, runtime: Arc::new(runtime) })
    }

    /// Puts a record. Blocks while the buffer is full.
    pub fn put(
        &self,
        key: impl AsRef<str> + Into<PartitionKey>,
        data: impl AsRef<[u8]> + Into<Bytes>,
    ) -> Result<SyncTicket, PutError> {
        self.wait_if_full(self.producer.try_put(key, data))
    }

    /// Puts a record, with everything that a record can have. Blocks while the buffer is full.
    pub fn put_record(&self, record: NewRecord) -> Result<SyncTicket, PutError> {
        self.wait_if_full(self.producer.try_put_record(record))
    }

    fn wait_if_full(&self, put: Result<Ticket, TryPutError>) -> Result<SyncTicket, PutError> {
        let ticket = match put {
            Ok(ticket) => ticket,
            Err(TryPutError::Refused(error)) => return Err(error),
            Err(TryPutError::Full(record)) => {
                self.runtime.block_on(self.producer.put_record(record))?
            }
        };
        Ok(self.ticket(ticket))
    }

    /// Puts a record if there is room now.
    pub fn try_put_record(&self, record: NewRecord) -> Result<SyncTicket, TryPutError> {
        Ok(self.ticket(self.producer.try_put_record(record)?))
    }

    /// Puts many records at once, as [`Producer::put_bulk`] does. Blocks while the buffer is full.
    pub fn put_bulk(&self, bulk: Bulk) -> Result<SyncBulkTicket, PutBulkError> {
        let ticket = self.runtime.block_on(self.producer.put_bulk(bulk))?;
        Ok(SyncBulkTicket { ticket, runtime: Arc::clone(&self.runtime) })
    }

    /// Puts many records if there is room for all of them now.
    pub fn try_put_bulk(&self, bulk: Bulk) -> Result<SyncBulkTicket, TryPutBulkError> {
        let ticket = self.producer.try_put_bulk(bulk)?;
        Ok(SyncBulkTicket { ticket, runtime: Arc::clone(&self.runtime) })
    }

    fn ticket(&self, ticket: Ticket) -> SyncTicket {
        SyncTicket { ticket, runtime: Arc::clone(&self.runtime) }
    }

    /// Blocks until everything that was put so far has its outcome.
    pub fn flush(&self) {
        self.runtime.block_on(self.producer.flush());
    }

    /// Lets a stopped key go on. `false` if it did not stand stopped.
    pub fn resume(&self, key: impl Into<PartitionKey>) -> bool {
        self.runtime.block_on(self.producer.resume(key))
    }

    /// Lets all stopped keys go on, as [`Producer::resume_all`] does.
    pub fn resume_all(&self) -> usize {
        self.runtime.block_on(self.producer.resume_all())
    }

    /// What events and metrics call this producer.
    pub fn id(&self) -> &ProducerId {
        self.producer.id()
    }

    /// Counts since the start.
    pub fn stats(&self) -> ProducerStats {
        self.producer.stats()
    }

    /// Closes it, as [`Producer::close`] does.
    pub fn close(&self, deadline: Duration) -> PutSummary {
        self.runtime.block_on(self.producer.close(deadline))
    }
}
