//! Producing in strict order, as a machine of values: events go in, actions come out.
//!
//! ```text
//! put ──Pending──▶ route ──▶ lane (FIFO) ──freeze──▶ Frozen ──limit──▶ Request ──▶ (the service)
//!                    ▲                                                               │
//!                    └── re-cut: stray, or of an older map ◀── judge ◀── Reply ◀─────┘
//!                                                                └──▶ Settled
//! ```
//!
//! What keeps the order of a key:
//!
//! 1. A key's records stand in one lane, in put order, and a lane has one container on its way. A
//!    request carries at most one container of a lane, so a refused entry is never overtaken.
//! 2. A container's bytes never change. A retry sends the same bytes before anything newer.
//! 3. Every change of the map is a barrier per hash range: a lane sends nothing while a container
//!    that left from an older lane, over the same hashes, is on its way or unjudged.
//! 4. A container is placed as a whole or not at all, because readers drop a whole aggregate for
//!    one record outside the shard's range. One that has a single hash can't be outside.
//!
//! A refusal of the caller (a missing permission, credentials, the encryption key) is no fault of a
//! record: the shards concerned are paused, and probed until the service lets the caller in.

pub mod settings;
pub mod outcome;
mod pending;
mod paged_queue;
mod carried_records;
mod shard_queue;
mod seal;
mod router;
pub mod rate;
mod stopped_keys;
mod machine;

pub use carried_records::CarriedRecords;
pub use machine::{
    Action, EntryResult, Machine, MachineNotice, PutReply, PutRequest, RequestEntry, ShardListRead,
    ShardListResult,
};
pub use paged_queue::QueuedRecord;
pub use pending::{AcceptedRecord, OfferedRecord, PendingRecord, RecordContent};
pub use stopped_keys::OrderingKey;
