//! Kinesis as the library sees it: one seam, in domain types, and who stands behind it.

pub mod api;
mod source;
#[cfg(any(feature = "aws", feature = "local"))]
pub(crate) mod start_shards;
mod event_stream;
#[cfg(any(feature = "aws", feature = "local"))]
mod consumer_limit;
pub(crate) mod summaries;
pub(crate) mod shard_lists;
#[cfg(feature = "aws")]
mod cbor;
#[cfg(feature = "aws")]
pub mod aws;
#[cfg(feature = "local")]
pub mod local;

#[cfg(feature = "aws")]
pub use aws::AwsKinesis;
#[cfg(feature = "aws")]
pub use cbor::wire_format::WireFormat;
#[cfg(feature = "local")]
pub use local::LocalKinesis;
pub use source::{FromEnv, IntoStreamApi, KinesisConfigError};
