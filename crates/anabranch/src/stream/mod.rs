//! Access to Kinesis: the trait [`StreamApi`](api::StreamApi), and its implementations on the AWS
//! SDK and on a local stream.
//!
//! ```no_run
//! use anabranch::{AwsKinesis, Consumer, Producer};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! // Region, credentials, endpoint and HTTP client of all clients in the process.
//! let config = anabranch::stream::aws::config_from_env().await?;
//! let kinesis = AwsKinesis::new(&config);
//! let consumer = Consumer::new("orders", "mailer").with_kinesis(kinesis.clone());
//! let producer = Producer::new("invoices").with_kinesis(kinesis);
//! # let _ = (consumer, producer);
//! # Ok(())
//! # }
//! ```
//!
//! Without `with_kinesis`, the configuration comes from the environment ([`FromEnv`]).
//!
//! ```text
//! consumer, producer,     ── StreamApi ──┬── AwsKinesis ──► SDK, CBOR or JSON ──► HttpClient
//! tail, lease coordinator                └── LocalKinesis ──► engine in this process
//! ```

pub mod api;
mod source;
pub(crate) mod start_shards;
#[cfg(any(feature = "aws", feature = "local"))]
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
