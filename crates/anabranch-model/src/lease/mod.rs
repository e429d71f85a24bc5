//! Leases: the shards that an application reads, their checkpoints, the gate before a child shard,
//! and the plan that assigns them to workers.
//!
//! ```text
//! shard list ── sync ──► NewLease ── create if absent ──► Lease ── gate ──► read the shard
//!
//! FleetSnapshot ── FleetView ── plan ──► LeaseMove ── conditional writes ──► the store
//!
//! Write ── LeaseTable ──► WriteOutcome ── Unknown? read back ── resolve ──► Resolution
//! ```

pub mod row;
pub mod listing;
pub mod checkpoint;
pub mod checkpoint_rules;
pub mod worker_row;
pub mod application;
mod stream_names;
pub mod sync;
pub mod gate;
pub mod write;
pub mod outcome;
pub mod table;
pub mod resolve;
pub mod deadline;
pub mod read_rate;
pub mod kcl_probe;
pub mod fleet_snapshot;
pub mod fleet_view;
pub mod java_shuffle;
pub mod plan;
pub mod audit_election;

pub use application::{ApplicationFacts, StreamFacts, is_same_creation};
pub use checkpoint::{Checkpoint, PendingCheckpoint};
pub use deadline::{Deadline, LeaseValidity};
pub use gate::{Gate, GateEvidence, GateListing, RowState, WaitReason, gate};
pub use kcl_probe::{KclProbe, ProbeBaseline};
pub use listing::{LeaseListing, UnreadableRow};
pub use outcome::{StoredRow, WriteOutcome, WriteRefusal};
pub use plan::plan;
pub use read_rate::ReadRate;
pub use resolve::{Resolution, resolve};
pub use row::{HandOver, Lease, LeaseKey, LeaseToken, NewLease};
pub use stream_names::StreamNames;
pub use sync::{OnInconsistentChild, Protocol, SyncError, first_sync, sync};
pub use table::{Layout, LeaseTable};
pub use worker_row::{WorkerId, WorkerRow, WorkerState};
pub use write::{LeaseChange, Nonce, StreamChange, WorkerChange, Write};
