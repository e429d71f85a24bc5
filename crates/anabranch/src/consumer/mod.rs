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
mod shard;
mod fetch;
mod budget;
mod resume;
mod decode;
mod lanes;
mod handler;
mod park;
mod progress;
mod checkpoint;
mod shutdown;

pub use config::{BadSettings, Consumer, ConsumerSettings};
pub use fetch::FetchMode;
pub use fetch::fanout::remove_fan_out;
pub use handler::{Batch, Batches, Delivery, Each, Handler, HandlerError};
pub use park::{OnError, ParkFile};
pub use worker::RunError;
pub(crate) use worker::Worker;
