//! Shared implementation of the SQL stores: tables, statements, rows and writes.
//!
//! ```text
//! Write ── change: BEGIN, read and lock the row ── Layout::lease_after ──► write the row, move the
//!          version ── COMMIT ──► WriteOutcome      (reply to COMMIT lost: Unknown)
//!
//! pool:    order of waiting calls; heartbeats do not wait for other calls
//! dialect: differences between PostgreSQL and SQLite in SQL
//! link:    differences between PostgreSQL and SQLite in API calls
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
