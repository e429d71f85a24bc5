//! Lease rows: which shards an application reads, from where, and when a child may start.
//!
//! ```text
//! shard list ── sync ──► NewLease ── create if absent ──► Row ── gate ──► read the shard
//! ```

pub mod row;
pub mod sync;
pub mod gate;

pub use gate::{Evidence, Gate, RowSeen, WaitReason, gate};
pub use row::{NewLease, Row};
pub use sync::{OnInconsistentChild, Protocol, SyncError, first_sync, sync};
