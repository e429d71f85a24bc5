//! The processor mode, known from KCL: one processor per shard, with five callbacks.
//!
//! ```text
//! create ─► initialize ─► process_records ─► …─┬─► shard_ended                      closed shard
//!              │ error: the shard is released  ├─► shutdown_requested ─► lease_lost stop/hand-over
//!              └─► taken again after a pause   └─► lease_lost                       lost lease
//! ```

mod checkpointer;
mod work;

pub use checkpointer::{CheckpointError, Checkpointer, PreparedCheckpoint};

use super::closure::HandlerError;
use anabranch_model::lease::{LeaseKey, PendingCheckpoint};
use anabranch_model::position::Position;
use anabranch_model::record::UserRecord;
use std::future::Future;
use std::sync::Arc;

/// Default maximum of records per call: the maximum that the service returns.
const MOST: usize = 10_000;

/// Processes the records of one shard, like KCL's `ShardRecordProcessor`.
///
/// Each shard has a processor of its own, and its calls never overlap. Differences from KCL:
///
/// * Records whose call failed or panicked are delivered again, as
///   [`OnError`](crate::consumer::OnError) says; KCL skips them.
/// * The future of a call is dropped when the lease is lost, or at the end of a stop's grace
///   period.
/// * A processor that cannot continue fails with [`RestartProcessor`]: a new one is created and
///   begins at the last checkpoint.
/// * [`ShardProcessor::lease_lost`] is called only after `initialize` has returned `Ok`. The last
///   call is either `lease_lost` or `shard_ended`: after a `shard_ended` that has checkpointed and
///   returned `Ok`, there are no more calls, whatever happens to the lease.
///
/// Only the processor moves the checkpoint, with its [`Checkpointer`]. Records after the last
/// checkpoint are redelivered after a change of owner.
pub trait ShardProcessor: Send + 'static {
    /// Prepares for the shard's records. After an error or a panic the shard is released, and taken
    /// again after a pause with a new processor.
    fn initialize(
        &mut self,
        start: ShardStart,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Processes the next records, in order.
    fn process_records(
        &mut self,
        batch: ProcessorBatch,
        checkpointer: &Checkpointer,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Notes that another worker has the shard, or is about to: checkpoints are no longer possible.
    ///
    /// Dropped if it takes longer than the setting `lease_lost_timeout` (default 5 s), and after at
    /// most 5 s where the lease is released and not lost.
    fn lease_lost(&mut self) -> impl Future<Output = ()> + Send;

    /// Completes a closed shard whose records were all processed. Checkpoint and return `Ok`: then
    /// the end of the shard is written, and its children are read. Without a checkpoint, or after
    /// an error, it is called again after a pause, and the children wait.
    ///
    /// If a stop comes meanwhile, it may continue during the grace period, like `process_records`.
    fn shard_ended(
        &mut self,
        checkpointer: &Checkpointer,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Prepares for a stop of the worker, or for an orderly hand-over to another worker. This is
    /// the last opportunity to checkpoint. Records that are not checkpointed are redelivered
    /// elsewhere.
    fn shutdown_requested(
        &mut self,
        checkpointer: &Checkpointer,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// Creates a processor for each shard that the worker reads.
pub trait ProcessorFactory: Send + Sync + 'static {
    /// Type of the processors.
    type Processor: ShardProcessor;

    /// Creates a processor for one shard. Called each time the worker gets the shard's lease, and
    /// for each restart.
    fn create(&self, shard: &Arc<LeaseKey>) -> Self::Processor;
}

/// Allows a closure as a factory.
impl<F, P> ProcessorFactory for F
where
    F: Fn(&Arc<LeaseKey>) -> P + Send + Sync + 'static,
    P: ShardProcessor,
{
    type Processor = P;

    fn create(&self, shard: &Arc<LeaseKey>) -> P {
        self(shard)
    }
}

/// Start position of a processor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardStart {
    /// Stream and shard.
    pub shard: Arc<LeaseKey>,
    /// Term of the lease under which the shard is read
    /// ([`Delivery::lease_term`](crate::consumer::Delivery::lease_term)).
    pub lease_term: u64,
    /// Position up to which the shard is done.
    pub at: Position,
    /// Checkpoint that the previous processor prepared and did not make, with its state.
    pub pending: Option<PendingCheckpoint>,
}

/// Records of a shard, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessorBatch {
    /// Stream and shard of the records.
    pub shard: Arc<LeaseKey>,
    /// Records in order. Empty only with [`Processors::with_empty_calls`].
    pub records: Vec<UserRecord>,
    /// Distance of the read's last record from the tip of the shard, in milliseconds.
    pub millis_behind_latest: Option<u64>,
    /// True if the read reported these as the last records of a closed shard. Only
    /// [`ShardProcessor::shard_ended`] is certain.
    pub at_shard_end: bool,
}

/// Processing mode with a processor per shard, for all shards of a worker.
#[derive(Clone, Debug)]
pub struct Processors<F> {
    factory: F,
    /// Maximum number of records per call.
    most: usize,
    /// If true, reads without records also lead to a call.
    empty_calls: bool,
}

impl<F: ProcessorFactory> Processors<F> {
    /// Creates the mode with a factory, for
    /// [`Consumer::with_handler`](crate::consumer::Consumer::with_handler).
    pub fn new(factory: F) -> Self {
        Self { factory, most: MOST, empty_calls: false }
    }

    /// Sets the maximum number of records per call: 10,000 by default, at least 1.
    #[must_use]
    pub fn with_most(mut self, most: usize) -> Self {
        self.most = most.max(1);
        self
    }

    /// Calls `process_records` also for reads without records, like KCL's
    /// `callProcessRecordsEvenForEmptyRecordList`.
    #[must_use]
    pub fn with_empty_calls(mut self) -> Self {
        self.empty_calls = true;
        self
    }
}

// Restart of a processor that cannot continue.

/// Error of a processor that cannot continue because it has lost state in memory, such as records
/// that it received and has not checkpointed.
///
/// Returned from `initialize`, `process_records` or `shard_ended`, it causes a new processor to be
/// created, which begins at the last checkpoint. The pause before it grows while the checkpoint
/// does not move. The worker keeps the lease. The old processor gets no more calls.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct RestartProcessor {
    why: String,
}

impl RestartProcessor {
    /// Creates the error with a reason for the operator.
    pub fn because(why: impl Into<String>) -> Self {
        Self { why: why.into() }
    }
}
