//! The SQL stores pass the suite, and meet the requirements of a shared database.
//!
//! PostgreSQL is a real server that the tests start; see `postgres_server`.

#![expect(clippy::unwrap_used, reason = "these are tests")]

#[path = "../postgres_server/mod.rs"]
mod postgres_server;
#[path = "../bad_row/mod.rs"]
mod bad_row;
mod steps;
mod proxy;
mod warnings;
mod rules;
mod databases;
mod prepare;
mod rivals;
mod refusals;
mod tls;
mod rows;
mod in_transaction;
mod lost_reply;
mod outage;
mod listen;
mod fleet;
mod bad_rows;
mod parking;
mod pooler;
