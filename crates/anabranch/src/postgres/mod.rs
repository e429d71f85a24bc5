//! PostgreSQL connections: addresses, sessions behind poolers, and notifications. Lease stores,
//! dead letters and the outbox relay share them.

pub mod url;
pub mod session;
pub mod listen;
