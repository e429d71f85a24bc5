//! Producing in strict order, as a pure state machine: events go in, actions come out.
//!
//! ```text
//! put_all ──▶ route ──▶ ShardQueue ──seal──▶ SealedRecord ──limit──▶ PutRequest ──▶ (the service)
//!               ▲                                                                        │
//!               └── requeue: misrouted, or of an older map ◀── judge ◀── PutReply ◀──────┘
//!                                                                └──▶ CompletedRecords
//! ```
//!
//! The order of a key rests on these invariants:
//!
//! 1. A key's records are in one queue, in put order, and a queue has one Kinesis record in flight.
//!    A request carries at most one Kinesis record of a queue, so a refused entry is never
//!    overtaken.
//! 2. The bytes of a Kinesis record never change. A retry sends the same bytes before anything
//!    newer.
//! 3. Every change of the map is a barrier per hash range. A queue sends nothing while a Kinesis
//!    record of a removed queue, over the same hashes, is in flight or unverified.
//! 4. An aggregate is placed as a whole or not at all, because readers drop all of it if one user
//!    record is outside the shard's range. An aggregate with a single hash cannot be outside.
//!
//! A refusal of the caller (a missing permission, credentials, the encryption key) is not the fault
//! of a record. The affected shards are paused, and probed until the service accepts the caller.

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
