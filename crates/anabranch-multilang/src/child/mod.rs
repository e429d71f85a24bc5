//! A child: the worker's process for one shard, its pipes, and its end.
//!
//! ```text
//! ask(Request) ─► writer task ─► stdin ┐            ┌─ stderr ─► log
//!                                      └► process ──┤
//! Step ◄─ Session ◄─ FromChild ◄─ bounded channel ◄─┴─ stdout ─► lines ─► hear ─ prints ─► log
//! ```

mod lines;
mod output;
mod launch;
mod conversation;
mod end;
#[cfg(all(test, unix))]
mod tests;

pub use conversation::{CheckpointWriter, NoCheckpoints};
pub use launch::{Child, ChildSettings};
pub use lines::{LINE_MAX_BYTES, LineSplitter, SplitLine};
