//! PostgreSQL connections: addresses, sessions behind poolers, and notifications. Shared by lease
//! stores, dead letters and the outbox relay.

pub mod url;
pub mod session;
pub mod listen;
