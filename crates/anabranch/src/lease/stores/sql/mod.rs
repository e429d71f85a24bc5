//! What the stores on SQL share: the tables, the statements, the rows and how a write is made.
//!
//! ```text
//! Write ── change: BEGIN, read the row and lock it ── Layout::lease_after ──► write it back, move
//!          the version ── COMMIT ──► Outcome        (the reply to COMMIT is lost: Unknown)
//!
//! pool:    who waits for whom; hearts wait for nobody
//! dialect: where PostgreSQL and SQLite differ in words
//! link:    where they differ in calls
//! ```

mod cell;
mod dialect;
mod statement;
mod row;
#[cfg(feature = "postgres")]
mod literal;
mod link;
mod pool;
mod failure;
mod schema;
mod migrate;
mod change;
mod in_transaction;
mod store;

#[cfg(feature = "postgres")]
pub(in crate::lease) use dialect::POSTGRES;
#[cfg(feature = "sqlite")]
pub(in crate::lease) use dialect::SQLITE;
pub(in crate::lease) use link::{DatabaseAddress, SqlExecutor};
pub(in crate::lease) use statement::TableNames;
#[cfg(feature = "postgres")]
pub(in crate::lease) use store::CHANNEL;
pub(in crate::lease) use store::{SqlStore, StoreTimeouts, problem_with_application};
