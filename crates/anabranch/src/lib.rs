//! Kinesis consumers and producers that keep every key in order through any split or merge.
//!
//! # A consumer
//!
//! ```no_run
//! use anabranch::{Consumer, Delivery, HandlerError, MemoryStore, RunError};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), RunError> {
//!     Consumer::new("orders", "mailer")
//!         .with_leases(MemoryStore::new()) // one process; SQL or DynamoDB for a fleet
//!         .each(|record: Delivery| async move {
//!             println!("{}: {:?}", record.partition_key, record.data);
//!             Ok::<(), HandlerError>(())
//!         })
//!         .run()
//!         .await
//! }
//! ```
//!
//! It reads every record of the stream `orders` from the oldest on, until SIGTERM or Ctrl-C. A
//! record is done when the closure returns `Ok`; after an error or a panic it is delivered again.
//! All processes with the application name `mailer` and the same lease store share the shards.
//!
//! # A producer
//!
//! ```no_run
//! use anabranch::Producer;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let producer = Producer::new("orders").start().await?;
//!     let ticket = producer.put("customer-7", "paid").await?; // waits for buffer space
//!     ticket.await.into_result()?; // waits until the record is stored
//!     Ok(())
//! }
//! ```
//!
//! # A tail
//!
//! [`Tail`] reads all shards of a stream for one process, in order, with nothing stored.
//!
//! # Processing modes
//!
//! | mode | calls | progress is stored by |
//! |---|---|---|
//! | [`Consumer::each`] | a closure for each record | the library, when the closure returns `Ok` |
//! | [`Consumer::batches`] | a closure for each batch | the library, when the closure returns `Ok` |
//! | [`Consumer::exactly_once`] | a closure for each batch | the transaction of the closure |
//! | [`Consumer::processors`] | a [`ShardProcessor`] for each shard, as in KCL | the processor's checkpoints |
//! | [`Consumer::with_handler`] and [`ShardStreams`] | a stream of records for each shard | an ack for each record |
//!
//! # Kinesis and credentials
//!
//! Region, credentials and endpoint come from the environment, as the AWS SDK reads them
//! (`AWS_REGION`, `AWS_PROFILE`, `AWS_ENDPOINT_URL_KINESIS`, …). `with_kinesis` takes an
//! `SdkConfig` instead, or any [`StreamApi`].
//!
//! # Guarantees
//!
//! - Records of one partition key are handled in the order of their sequence numbers, through
//!   splits, merges, crashes and moves of leases.
//! - Every record is handled at least once; after an orderly stop none is handled twice.
//! - A producer in strict order never lets a later record of a key overtake an earlier one.
//!
//! `docs/consumer.md` and `docs/producer.md` in the repository tie each promise to its tests.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `aws` | yes | Kinesis and DynamoDB through the AWS SDK |
//! | `postgres` | yes | leases, dead letters and exactly-once handlers in PostgreSQL |
//! | `sqlite` | yes | the same in a SQLite file |
//! | `cloudwatch` | no | metrics in CloudWatch under KCL's names |
//! | `local` | no | [`LocalKinesis`](stream::local), the local stream in this process |
//! | `testing` | no | the conformance suite for lease stores |
//!
//! All features are additive. [`StoreAddress`](lease) and `AnyStore`, which choose a store at run
//! time, need `aws`, `postgres` and `sqlite`.

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

pub use anabranch_model::hash::{HashKey, HashRange};
pub use anabranch_model::ids::{ShardId, StreamName};
pub use anabranch_model::lease::LeaseKey;
pub use anabranch_model::position::{Position, StartPosition};
pub use anabranch_model::record::{PartitionKey, Record, UserRecord};
pub use anabranch_model::retry::{Backoff, Fault};
pub use anabranch_model::sequence::SequenceNumber;
pub use bytes::Bytes;
pub use clock::{Clock, Rng};
pub use consumer::{
    Batch, CheckpointError, Checkpointer, CommitError, Consumer, ConsumerConfigError,
    ConsumerSettings, ControlError, DeadLetter, DeadLetterError, DeadLetterFile, DeadLetterQueue,
    Deduplicator, Delivery, ExactlyOnce, FetchMode, Handler, HandlerError, Health, Interrupted,
    InterruptedCall, OnError, ParseDeadLetterError, PreparedCheckpoint, ProcessorBatch,
    ProcessorFactory, Processors, ReadPhase, RedriveSummary, RestartProcessor, RunError,
    ShardHealth, ShardProcessor, ShardRecord, ShardStart, ShardStream, ShardStreams, StreamControl,
    TransactionBatch, WatchdogAction, WatchdogLimits,
};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use consumer::{DeadLetterTable, TableNameError};
pub use event::{Event, Events, LeaseEvent, ProducerEvent, RelayEvent, ShardEvent};
#[cfg(feature = "aws")]
pub use lease::DynamoDbStore;
#[cfg(feature = "postgres")]
pub use lease::PostgresStore;
#[cfg(feature = "sqlite")]
pub use lease::SqliteStore;
#[cfg(all(feature = "aws", feature = "postgres", feature = "sqlite"))]
pub use lease::{AnyStore, ParseStoreAddressError, StoreAddress};
pub use lease::{CoordinatorStartError, LeaseStore, MemoryStore, StoreError, StreamSettings};
pub use producer::{
    Aggregation, Attempt, AttemptResult, Attempts, Bulk, BulkTicket, ConfigProblem, DeliveryError,
    KeyOrder, NewRecord, OnFailure, OrderingKey, Outcome, Outcomes, PlacedRecord, Producer,
    ProducerBuilder, ProducerConfigError, ProducerId, ProducerStartError, ProducerStats,
    PutBulkError, PutError, PutSummary, RejectReason, SyncBulkTicket, SyncProducer, SyncTicket,
    Ticket, TryPutBulkError, TryPutError,
};
#[cfg(feature = "aws")]
pub use stream::AwsKinesis;
#[cfg(feature = "local")]
pub use stream::LocalKinesis;
pub use stream::api::{StreamApi, StreamError};
pub use stream::{FromEnv, IntoStreamApi, KinesisConfigError};
pub use tail::{Tail, TailError};
