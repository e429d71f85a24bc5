//! Transactional outbox relay from PostgreSQL to Kinesis: no row is skipped and each key stays in
//! order.
//!
//! A service inserts its events into a table, in the transaction that changes its data. A relay
//! reads that table and puts each row into a stream:
//!
//! ```text
//! lock ─▶ read ──OutboxRow──▶ envelope ──▶ Producer ──Outcome──▶ judge ─┬─▶ remove (delete, mark)
//!          ▲  (horizon, by id)        (strict order, fenced)            ├─▶ block the key
//!          └──────────────── notification or poll ◀─────────────────────┘
//! ```
//!
//! ```no_run
//! use anabranch_outbox::{Database, OutboxTable, Relay};
//!
//! # async fn run(kinesis: anabranch::stream::AwsKinesis) -> Result<(), Box<dyn std::error::Error>> {
//! let database = Database::from_url("postgres://me@db.example.com/shop")?;
//! let relay = Relay::new(database, OutboxTable::named("outbox")?, "orders");
//! relay.run(&kinesis, tokio_util::sync::CancellationToken::new()).await?;
//! # Ok(())
//! # }
//! ```

mod error;
mod database;
mod session;
mod table;
mod schema;
mod migrate;
mod lock;
mod leadership;
mod listen;
mod poll_schedule;
mod read;
mod envelope;
mod in_flight;
mod row_verdict;
mod remove;
mod removal_queue;
mod blocked_keys;
mod sweep;
mod lag;
mod config;
mod relay;
mod leader_term;
mod status;
mod explain;

pub use blocked_keys::{Retried, Skipped, retry, retry_all, skip};
pub use config::{Relay, RowFormat};
pub use database::Database;
pub use envelope::{Envelope, NotAnEnvelope};
pub use error::{RelayError, TableProblem};
pub use explain::{explain, explain_key};
pub use migrate::{InitReport, init};
pub use status::{BlockedKey, BlockingTransaction, OutboxStatus, status};
pub use table::{AfterSend, ColumnNames, OutboxTable};
