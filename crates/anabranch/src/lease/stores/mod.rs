//! The lease stores: memory, SQLite, PostgreSQL and DynamoDB.

pub mod memory;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(all(feature = "aws", feature = "postgres", feature = "sqlite"))]
pub(super) mod any;
#[cfg(all(feature = "aws", feature = "postgres", feature = "sqlite"))]
pub(super) mod address;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(super) mod sql;
#[cfg(feature = "aws")]
pub mod dynamodb;
#[cfg(feature = "postgres")]
pub mod postgres;
