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
mod worker;
mod control;
mod shard;
mod fetch;
mod budget;
mod resume;
mod marks;
mod decode;
mod lanes;
mod halt;
mod shape;
mod handler;
mod processor;
mod streams;
mod exactly_once;
mod park;
mod repeats;
mod progress;
mod checkpoint;
mod vitals;
mod health;
mod watch;
mod shutdown;
mod broken_off;
mod alone;

pub(crate) use alone::{LeaselessReader, LeaselessStart};
pub use anabranch_model::watch::{ReadPhase, WatchdogAction, WatchdogLimits};
pub use broken_off::InterruptedCall;
pub(crate) use budget::MemoryBudget;
pub use config::{Consumer, ConsumerConfigError, ConsumerSettings};
pub use control::{ControlError, StreamControl};
pub use exactly_once::{CommitError, ExactlyOnce, TransactionBatch};
pub use fetch::FetchMode;
pub use fetch::fanout::remove_fan_out;
pub(crate) use fetch::{FetchEnd, is_final};
pub use handler::{Batch, Delivery, Handler, HandlerError, Interrupted, PerBatch, PerRecord};
pub use health::{Health, ShardHealth};
pub(crate) use lanes::Chunk;
pub use park::{
    DeadLetter, DeadLetterError, DeadLetterFile, DeadLetterQueue, OnError, ParseDeadLetterError,
    RedriveSummary,
};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use park::{DeadLetterTable, TableNameError};
pub use processor::{
    CheckpointError, Checkpointer, PreparedCheckpoint, ProcessorBatch, ProcessorFactory,
    Processors, RestartProcessor, ShardProcessor, ShardStart,
};
pub use repeats::Deduplicator;
pub use shape::{ProcessingMode, Work};
pub use streams::{ShardRecord, ShardStream, ShardStreams};
pub use worker::RunError;
pub(crate) use worker::WorkerContext;
