//! The operations of the API: one file each, with its request, its reply and what it does.
//!
//! Requests have every field optional, because that is what arrives; the operation checks them and
//! answers in the service's words. `PutRecord`, `PutRecords` and `GetRecords` are hot: their
//! requests borrow from the body, and their replies are encoded by hand.

pub mod create_stream;
pub mod describe_stream;
pub mod describe_stream_summary;
pub mod list_shards;
pub mod put_record;
pub mod put_records;
pub mod get_shard_iterator;
pub mod get_records;

mod description;
mod operation;
mod run;
mod tags;
mod target;
mod timestamp;

pub use description::{ChildShard, HashKeyRange, SequenceNumberRange, ShardDescription};
pub use operation::Operation;
pub use target::{StreamModeDetails, StreamTarget};
pub use timestamp::Timestamp;
