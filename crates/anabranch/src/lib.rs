//! Kinesis consumers and producers that keep every key in order through any split or merge.
//!
//! The decisions are in `anabranch-model`; here is what carries them out. The modules stand in
//! reading order.

pub mod clock;
mod time;
pub mod event;
#[cfg(feature = "aws")]
pub mod http_client;
pub mod stream;
pub mod lease;
pub mod consumer;
pub mod tail;
pub mod producer;
pub mod metrics;
#[cfg(feature = "postgres")]
#[doc(hidden)]
pub mod postgres;
#[cfg(feature = "cloudwatch")]
pub mod cloudwatch;
