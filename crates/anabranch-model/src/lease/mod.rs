//! Leases: which shards an application reads, from where, when a child may start, and who reads.
//!
//! ```text
//! shard list ── sync ──► NewLease ── create if absent ──► Lease ── gate ──► read the shard
//!
//! Snapshot ── view ── plan ──► LeaseMove ── conditional writes ──► the store
//!
//! Write ── table ──► Outcome ── Unknown? read back ── resolve ──► Applied | NotApplied | StillUnknown
//! ```

pub mod row;
pub mod listing;
pub mod checkpoint;
pub mod permitted;
pub mod worker;
pub mod application;
mod stream_names;
pub mod sync;
pub mod gate;
pub mod write;
pub mod outcome;
pub mod table;
pub mod resolve;
pub mod deadline;
pub mod rate;
pub mod survey;
pub mod snapshot;
pub mod view;
pub mod shuffle;
pub mod plan;
pub mod duty;

pub use application::{Application, StreamFacts, is_same_creation};
pub use checkpoint::{Checkpoint, PendingCheckpoint};
pub use deadline::{Deadline, Tenure};
pub use gate::{Evidence, Gate, Listed, RowSeen, WaitReason, gate};
pub use listing::{Listing, Unreadable};
pub use outcome::{Outcome, Refusal, Stored};
pub use plan::plan;
pub use rate::Rate;
pub use resolve::{Resolution, resolve};
pub use row::{HandOver, Hold, Lease, LeaseKey, NewLease};
pub use stream_names::StreamNames;
pub use survey::{Survey, Surveyed};
pub use sync::{OnInconsistentChild, Protocol, SyncError, first_sync, sync};
pub use table::{Layout, Table};
pub use worker::{Worker, WorkerId, WorkerState};
pub use write::{LeaseChange, Nonce, StreamChange, WorkerChange, Write};

#[cfg(test)]
mod history;
