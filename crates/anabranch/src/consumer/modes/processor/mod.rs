//! The shape that people know from KCL: a processor per shard, with five callbacks.
//!
//! ```text
//! create ─► initialize ─► process_records ─► ... ─┬─► shard_ended                       closed shard
//!              │ error: the shard is given back   ├─► shutdown_requested ─► lease_lost   stop, hand-over
//!              └─► taken again after a pause      └─► lease_lost                         lease lost
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

/// How many records one call takes, unless it is told otherwise: what the service returns at most.
const MOST: usize = 10_000;

/// Processes the records of one shard: KCL's `ShardRecordProcessor`.
///
/// Each shard has a processor of its own, and its calls never overlap. What differs from KCL:
///
/// * Records whose call failed or panicked come again (KCL skips them), as
///   [`OnError`](crate::consumer::OnError) says.
/// * The future of a call is dropped when the lease is lost, or at the end of a stop's grace.
/// * One that can't go on fails with [`RestartProcessor`]: a new one is made, and begins at the last
///   checkpoint.
/// * [`ShardProcessor::lease_lost`] comes only after `initialize` has returned `Ok`. One of it and
///   `shard_ended` is the last call: after a `shard_ended` that has checkpointed and returned `Ok`
///   nothing is told, whatever becomes of the lease.
///
/// What is done, the processor says itself by its [`Checkpointer`]; nothing else moves the
/// checkpoint, so what lies behind the last one comes again after a change of owner.
pub trait ShardProcessor: Send + 'static {
    /// The shard is about to be read. After an error or a panic the shard is given back, and taken
    /// again after a pause, with a new processor.
    fn initialize(
        &mut self,
        start: ShardStart,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// The next records, in order.
    fn process_records(
        &mut self,
        batch: ProcessorBatch,
        checkpointer: &Checkpointer,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// The shard belongs to another worker, or is about to: nothing can be checkpointed any more.
    /// Dropped if it takes longer than five seconds.
    fn lease_lost(&mut self) -> impl Future<Output = ()> + Send;

    /// Every record of the closed shard was processed. Checkpoint, and return `Ok`: then the end of
    /// the shard is written, and its children are read. Without a checkpoint, or after an error, it
    /// is called again after a pause, and the children wait.
    ///
    /// A stop that comes meanwhile leaves it the stop's grace, as it does `process_records`.
    fn shard_ended(
        &mut self,
        checkpointer: &Checkpointer,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// The worker stops, or another one takes the shard over in order: the last chance to
    /// checkpoint. What is not checkpointed comes again elsewhere.
    fn shutdown_requested(
        &mut self,
        checkpointer: &Checkpointer,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// Makes a processor for each shard that the worker reads.
pub trait ProcessorFactory: Send + Sync + 'static {
    /// What it makes.
    type Processor: ShardProcessor;

    /// A processor for one shard. Called each time that the worker gets the shard's lease.
    fn create(&self, shard: &Arc<LeaseKey>) -> Self::Processor;
}

/// A closure is a factory.
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

/// Where a processor begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardStart {
    /// The stream and shard.
    pub shard: Arc<LeaseKey>,
    /// The term of the lease under which the shard is read
    /// ([`Delivery::lease_term`](crate::consumer::Delivery::lease_term)).
    pub lease_term: u64,
    /// Up to where the shard is done.
    pub at: Position,
    /// A checkpoint that the processor before has prepared and not made, with its state.
    pub pending: Option<PendingCheckpoint>,
}

/// Records of a shard, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessorBatch {
    /// The stream and shard.
    pub shard: Arc<LeaseKey>,
    /// The records. Empty only after [`Processors::with_empty_calls`].
    pub records: Vec<UserRecord>,
    /// How old the newest record of the read is against the shard's newest, in milliseconds.
    pub millis_behind_latest: Option<u64>,
    /// Whether these are the last records of a closed shard, as the read says that gave them. Only
    /// [`ShardProcessor::shard_ended`] is certain.
    pub at_shard_end: bool,
}

/// The processors of all shards of a worker.
#[derive(Clone, Debug)]
pub struct Processors<F> {
    /// What makes them.
    factory: F,
    /// How many records one call takes at most.
    most: usize,
    /// Whether reads without records are told too.
    empty_calls: bool,
}

impl<F: ProcessorFactory> Processors<F> {
    /// Processors made by `factory`, for
    /// [`Consumer::with_handler`](crate::consumer::Consumer::with_handler).
    pub fn new(factory: F) -> Self {
        Self { factory, most: MOST, empty_calls: false }
    }

    /// How many records one call takes at most: 10,000 by default, 1 at least.
    #[must_use]
    pub fn with_most(mut self, most: usize) -> Self {
        self.most = most.max(1);
        self
    }

    /// Calls `process_records` also for reads that gave no records: KCL's
    /// `callProcessRecordsEvenForEmptyRecordList`.
    #[must_use]
    pub fn with_empty_calls(mut self) -> Self {
        self.empty_calls = true;
        self
    }
}

// A processor that can't go on.

/// What a processor fails with that can't go on: it has lost what it held in memory, such as
/// records that it was given and has not checkpointed.
///
/// From `initialize`, `process_records` or `shard_ended` it has a new processor made, which begins
/// at the last checkpoint, after a pause that grows as long as the checkpoint does not move. The
/// lease stays where it is. The old one is told nothing more.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct RestartProcessor {
    why: String,
}

impl RestartProcessor {
    /// With the reason, for the operator.
    pub fn because(why: impl Into<String>) -> Self {
        Self { why: why.into() }
    }
}
