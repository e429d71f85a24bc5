//! The consumer: passes every record of a stream to a handler, each key in order, through splits,
//! merges and crashes.
//!
//! ```no_run
//! use anabranch::{Consumer, Delivery, HandlerError, SqliteStore};
//! use std::time::Duration;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let leases = SqliteStore::open("leases.db", "mailer")?; // shared by processes of one machine
//! Consumer::new("orders", "mailer")
//!     .with_leases(leases)
//!     .with_concurrency(8) // lanes per shard; each key stays in order
//!     .with_settings(|settings| settings.grace_period = Duration::from_secs(5))
//!     .each(|record: Delivery| async move {
//!         println!("{}: {:?}", record.partition_key, record.data);
//!         Ok::<(), HandlerError>(())
//!     })
//!     .run() // until SIGTERM or Ctrl-C
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! The [crate page](crate#processing-modes) compares the processing modes. [`ConsumerSettings`]
//! lists all settings with their defaults. [`Consumer::health`] and [`Consumer::with_events`] show
//! a running consumer; [`Consumer::control`] changes its streams.
//!
//! Path of a record:
//!
//! ```text
//! Coordinator ─ LeaseHandle ─► shard::run
//!                                │
//!                                ├─► fetch ─ Record ─► Dispatcher ─ Chunk ─► Lane ─► handler
//!                                │     ▲ ReplyReservation                      │ done
//!                                │  MemoryBudget                               ▼
//!                                └─► CheckpointWriter ◄──── Checkpoint ──── Progress
//!                                          └─► LeaseHandle::checkpoint, end, finish
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
