//! A local Kinesis stream: the engine in process, and the same engine over HTTP.

pub mod clock;
pub mod options;
pub mod error;
mod lock;
mod arn;
mod constraint;
pub mod engine;
pub mod change;
pub mod journal;
mod lifecycle;
mod encryption;
mod stream;
mod shard;
mod shard_log;
mod segment;
mod buffer;
mod record_batch;
mod reshard;
mod consumer;
pub mod subscription;
mod token;
mod limit;
mod memory;
pub mod fault;
pub mod op;
mod wire;
mod tls;
mod server;
#[cfg(feature = "sdk")]
mod sdk;
mod local;
pub mod persist;

pub use clock::Clock;
pub use encryption::Encryption;
pub use engine::{Engine, StreamRef};
pub use error::{ApiError, ErrorKind};
pub use lifecycle::Status;
pub use local::{Local, LocalBuilder, LocalStartError};
pub use options::EngineOptions;
pub use record_batch::{BatchRecord, RecordBatch};
pub use server::Connections;
pub use shard_log::LogRecord;
pub use tls::{Tls, TlsError};
