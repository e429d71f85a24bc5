//! `SyncProducer`, a producer with blocking calls, for threads outside of an async runtime.

use super::config::ProducerBuilder;
use super::outcome::{BulkTicket, Outcomes};
use super::outcome::{Outcome, Ticket};
use super::put::{Producer, PutSummary};
use super::record::{Bulk, PutBulkError, TryPutBulkError};
use super::record::{NewRecord, PutError, TryPutError};
use super::report::ProducerId;
use super::report::ProducerStats;
use super::start::ProducerStartError;
use crate::stream::IntoStreamApi;
use anabranch_model::record::PartitionKey;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// A [`Producer`] with blocking calls. It runs on its own thread, and any number of threads may use
/// it. Clones share one producer. Do not use it inside an async task: calls that block panic there.
///
/// ```no_run
/// use anabranch::{Producer, SyncProducer};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let producer = SyncProducer::start(Producer::new("orders"))?;
/// let ticket = producer.put("customer-7", "paid")?;
/// ticket.wait().into_result()?; // waits until the record is stored
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct SyncProducer {
    /// Declared before `runtime`, so that it is dropped first.
    producer: Producer,
    runtime: Arc<Runtime>,
}

/// Handle to the outcome of a put. Dropping it only discards the outcome.
#[derive(Debug)]
#[must_use = "wait for the ticket for the outcome of the record"]
pub struct SyncTicket {
    ticket: Ticket,
    runtime: Arc<Runtime>,
}

impl SyncTicket {
    /// Blocks until the record has an outcome.
    pub fn wait(self) -> Outcome {
        self.runtime.block_on(self.ticket)
    }

    /// Returns the outcome if it is available, without blocking.
    pub fn try_outcome(&self) -> Option<Outcome> {
        self.ticket.try_outcome()
    }
}

/// Handle to the outcomes of a bulk. Dropping it only discards the outcomes.
#[derive(Debug)]
#[must_use = "wait for the ticket for the outcomes of the records"]
pub struct SyncBulkTicket {
    ticket: BulkTicket,
    runtime: Arc<Runtime>,
}

impl SyncBulkTicket {
    /// Blocks until all records have an outcome.
    pub fn wait(self) -> Outcomes {
        self.runtime.block_on(self.ticket)
    }

    /// Returns the outcomes if all of them are available, without blocking.
    pub fn try_outcomes(&self) -> Option<Outcomes> {
        self.ticket.try_outcomes()
    }
}

impl SyncProducer {
    /// Starts a producer on its own thread. Blocks as long as [`ProducerBuilder::start`] takes.
    ///
    /// # Panics
    ///
    /// If no thread can be created.
    pub fn start<K: IntoStreamApi>(
        builder: ProducerBuilder<K>,
    ) -> Result<Self, ProducerStartError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("anabranch-producer")
            .enable_all()
            .build()
            .expect("the runtime requires one thread, and the system could not create it");
        let producer = runtime.block_on(builder.start())?;
        Ok(Self { producer, runtime: Arc::new(runtime) })
    }

    /// Puts a record, as [`Producer::put`] does. Blocks while the buffer is full.
    pub fn put(
        &self,
        key: impl AsRef<str> + Into<PartitionKey>,
        data: impl AsRef<[u8]> + Into<Bytes>,
    ) -> Result<SyncTicket, PutError> {
        self.wait_if_full(self.producer.try_put(key, data))
    }

    /// Puts a record, as [`Producer::put_record`] does. Blocks while the buffer is full.
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

    /// Puts a record without blocking, if there is free buffer space.
    pub fn try_put_record(&self, record: NewRecord) -> Result<SyncTicket, TryPutError> {
        Ok(self.ticket(self.producer.try_put_record(record)?))
    }

    /// Puts many records at once, as [`Producer::put_bulk`] does. Blocks while the buffer is full.
    pub fn put_bulk(&self, bulk: Bulk) -> Result<SyncBulkTicket, PutBulkError> {
        let ticket = self.runtime.block_on(self.producer.put_bulk(bulk))?;
        Ok(SyncBulkTicket { ticket, runtime: Arc::clone(&self.runtime) })
    }

    /// Puts many records without blocking, if there is free buffer space for all of them.
    pub fn try_put_bulk(&self, bulk: Bulk) -> Result<SyncBulkTicket, TryPutBulkError> {
        let ticket = self.producer.try_put_bulk(bulk)?;
        Ok(SyncBulkTicket { ticket, runtime: Arc::clone(&self.runtime) })
    }

    fn ticket(&self, ticket: Ticket) -> SyncTicket {
        SyncTicket { ticket, runtime: Arc::clone(&self.runtime) }
    }

    /// Sends everything put so far without lingering, and blocks until all of it has an outcome.
    pub fn flush(&self) {
        self.runtime.block_on(self.producer.flush());
    }

    /// Resumes a stopped key, as [`Producer::resume`] does. Returns `false` if it was not stopped.
    pub fn resume(&self, key: impl Into<PartitionKey>) -> bool {
        self.runtime.block_on(self.producer.resume(key))
    }

    /// Resumes all stopped keys, as [`Producer::resume_all`] does. Returns the number of keys that
    /// were remembered as stopped.
    pub fn resume_all(&self) -> usize {
        self.runtime.block_on(self.producer.resume_all())
    }

    /// Returns the id of this producer in events and metrics.
    pub fn id(&self) -> &ProducerId {
        self.producer.id()
    }

    /// Returns the counts since the start.
    pub fn stats(&self) -> ProducerStats {
        self.producer.stats()
    }

    /// Closes the producer, as [`Producer::close`] does. Blocks for at most `deadline`.
    pub fn close(&self, deadline: Duration) -> PutSummary {
        self.runtime.block_on(self.producer.close(deadline))
    }
}
