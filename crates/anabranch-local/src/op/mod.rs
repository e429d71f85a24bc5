//! The operations of the API. Each has a file with its request, its reply and its implementation.
//!
//! Every field of a request is optional, because clients may omit any of them. The operation checks
//! the fields and answers with the service's messages. `PutRecord`, `PutRecords` and `GetRecords`
//! are hot: their requests borrow from the body, and their replies are encoded by hand.

pub mod create_stream;
pub mod delete_stream;
pub mod describe_stream;
pub mod describe_stream_summary;
pub mod describe_limits;
pub mod describe_account_settings;
pub mod list_streams;
pub mod list_shards;

pub mod put_record;
pub mod put_records;
pub mod get_shard_iterator;
pub mod get_records;

pub mod split_shard;
pub mod merge_shards;
pub mod update_shard_count;
pub mod update_stream_mode;
pub mod increase_stream_retention_period;
pub mod decrease_stream_retention_period;
pub mod update_max_record_size;
pub mod start_stream_encryption;
pub mod stop_stream_encryption;
pub mod enable_enhanced_monitoring;
pub mod disable_enhanced_monitoring;

pub mod register_stream_consumer;
pub mod deregister_stream_consumer;
pub mod describe_stream_consumer;
pub mod list_stream_consumers;
pub mod subscribe_to_shard;

pub mod add_tags_to_stream;
pub mod remove_tags_from_stream;
pub mod list_tags_for_stream;
pub mod tag_resource;
pub mod untag_resource;
pub mod list_tags_for_resource;

mod operation;
mod run;
mod target;
mod consumer_target;
mod description;
mod retention;
mod stream_encryption;
mod monitoring;
mod tags;
mod timestamp;

pub use consumer_target::{ConsumerDescription, ConsumerTarget};
pub use description::{ChildShard, HashKeyRange, SequenceNumberRange, ShardDescription};
pub use operation::Operation;
pub use tags::Tag;
pub use target::{StreamModeDetails, StreamTarget};
pub use timestamp::Timestamp;
