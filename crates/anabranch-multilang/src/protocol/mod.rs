//! Multi-language protocol: one JSON object per line over the child's standard input and output.
//!
//! ```text
//! daemon ── initialize | processRecords | leaseLost | shardEnded | shutdownRequested ──► child
//!        ◄─ checkpoint ─ (any number) ─ checkpoint with or without error ─►
//!        ◄─ status, responseFor = that action ─
//! ```

mod action;
mod to_child;
mod flat_json;
mod from_child;

pub use action::{Action, ShutdownMessages};
pub use from_child::{ChildLine, FromChild, parse};
pub use to_child::{CheckpointReply, ToChild};
