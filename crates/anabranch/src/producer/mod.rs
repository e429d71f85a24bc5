//! The producer: puts records into one stream, with high throughput and strict order per key.
//!
//! ```
//! # use anabranch::{Bulk, LocalKinesis, Outcome, Producer};
//! # use anabranch_local::{Clock, Engine, EngineOptions, op::create_stream};
//! # use std::{sync::Arc, time::Duration};
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let engine = Arc::new(Engine::new(EngineOptions::instant(), Clock::system()));
//! # engine.create_stream(&create_stream::Request {
//! #     stream_name: Some("orders".to_owned()),
//! #     shard_count: Some(2),
//! #     ..create_stream::Request::default()
//! # })?;
//! let producer = Producer::new("orders").with_kinesis(LocalKinesis::new(engine)).start().await?;
//! let ticket = producer.put("customer-7", "paid").await?; // waits for free buffer space
//! match ticket.await { // waits for the outcome
//!     Outcome::Placed { shard, sequence, .. } => println!("{shard} {sequence}"),
//!     other => println!("{other:?}"),
//! }
//! let mut bulk = Bulk::new(); // many records, one ticket
//! bulk.push("customer-7", "sent");
//! bulk.push("customer-8", "paid");
//! let outcomes = producer.put_bulk(bulk).await?.await;
//! assert!(outcomes.all_placed());
//! let summary = producer.close(Duration::from_secs(10)).await;
//! assert_eq!(summary.placed, 3);
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?; Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The example runs on the local stream of the feature `local`. Without
//! [`with_kinesis`](ProducerBuilder::with_kinesis), the environment names the region and the
//! credentials. [`ProducerBuilder`] has all settings with their defaults. [`SyncProducer`] is the
//! blocking variant for threads.
//!
//! Path of a record:
//!
//! ```text
//! put ── NewRecord or Bulk ──► InputQueue ──► ProducerDriver ── OfferedRecord ──► Machine
//!  (waits for free space)                       │        ▲                          │ Action
//!                                               │        │ PutReply,                ▼
//! Ticket ◄── Outcome ── Completions ◄───────────┘        │ ShardListResult       Requester
//!                                                        └──────── StreamApi ◄──────┘
//! ```
//!
//! The state machine ([`Machine`](anabranch_model::produce::Machine)) makes all decisions: routing,
//! aggregation, requests, rates, retries and verification. This module executes them.

mod config;
mod start;
mod record;
mod put;
mod buffer_limit;
mod queue;
mod input_buffer;
mod driver;
mod flush;
mod requests;
mod outcome;
mod outcome_set;
mod completions;
mod report;
mod sync;

pub use anabranch_model::produce::OrderingKey;
pub use anabranch_model::produce::outcome::{Attempt, AttemptResult, RejectReason};
pub use anabranch_model::produce::settings::{Aggregation, KeyOrder, OnFailure};
pub use config::{ConfigProblem, ProducerBuilder, ProducerConfigError};
pub use outcome::{Attempts, DeliveryError, Outcome, PlacedRecord, Ticket};
pub use outcome::{BulkTicket, Outcomes};
pub use put::{Producer, PutSummary};
pub use record::{Bulk, PutBulkError, TryPutBulkError};
pub use record::{NewRecord, PutError, TryPutError};
pub use report::{ProducerId, ProducerStats};
pub use start::ProducerStartError;
pub use sync::{SyncBulkTicket, SyncProducer, SyncTicket};
