//! The consumer: every record of a stream to a handler, each key in order, through any split, merge
//! and crash.
//!
//! ```text
//! Coordinator ─ Grip ─► worker ─► shard ─┬─► fetch ─ Record ─► decode ─ UserRecord ─► lanes ─► handler
//!                                        │     ▲ Room (bytes)                           │ done
//!                                        │   budget                                  progress
//!                                        └─► checkpoint ◄─ watermark per lane ──────────┘
//!                                                 └─► Grip::checkpoint, Grip::end, Grip::finish
//! ```

mod config;
mod run;
mod control;
mod shard;
mod fetch;
mod dispatch;
mod stop_signal;
mod modes;
mod dead_letter;
mod deduplicator;
mod progress;
mod checkpoint;
mod health;

pub use anabranch_model::stuck_detector::{ReadPhase, WatchdogAction, WatchdogLimits};
pub use config::{Consumer, ConsumerConfigError, ConsumerSettings};
pub use control::{ControlError, StreamControl};
pub use dead_letter::{
    DeadLetter, DeadLetterError, DeadLetterFile, DeadLetterQueue, OnError, ParseDeadLetterError,
    RedriveSummary,
};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use dead_letter::{DeadLetterTable, TableNameError};
pub use deduplicator::Deduplicator;
pub(crate) use dispatch::lane::Chunk;
pub(crate) use dispatch::memory::MemoryBudget;
pub use fetch::FetchMode;
pub use fetch::fan_out::remove_fan_out;
pub(crate) use fetch::leaseless::{LeaselessReader, LeaselessStart};
pub(crate) use fetch::{FetchEnd, is_final};
pub use health::{Health, ShardHealth};
pub use modes::closure::{
    Batch, Delivery, Handler, HandlerError, Interrupted, PerBatch, PerRecord,
};
pub use modes::exactly_once::{CommitError, ExactlyOnce, TransactionBatch};
pub use modes::processor::{
    CheckpointError, Checkpointer, PreparedCheckpoint, ProcessorBatch, ProcessorFactory,
    Processors, RestartProcessor, ShardProcessor, ShardStart,
};
pub use modes::shard_stream::{ShardRecord, ShardStream, ShardStreams};
pub use modes::{ProcessingMode, Work};
pub use run::RunError;
pub(crate) use run::WorkerContext;
pub use shard::interrupted::InterruptedCall;
