//! Child process that handles one shard: its pipes, its requests and its end.
//!
//! ```text
//! ask(ToChild) ─► write_lines ─► stdin ─► process
//! process ─► stdout ─► listen ─┬─ FromChild ─► bounded channel ─► ChildSession ─► SessionStep
//!                              └─ other output ─► log
//! process ─► stderr ─► log_errors ─► log
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
