//! What `--data DIR` keeps: an append-only journal of everything that changed the engine.
//!
//! ```text
//! DIR/lock                     held by the one server that uses the folder
//! DIR/journal-0000000001.log   header, snapshot, entry, entry, … sealed
//! DIR/journal-0000000002.log   header, snapshot, entry, …
//! ```
//!
//! Each file begins with a snapshot of the metadata, so that old files can go when no record in
//! them is within retention.

mod compact;
mod error;
mod folder;
mod frame;
mod header;
mod journal;
mod replay;
mod sync;

#[cfg(test)]
mod tests;

pub use error::{AppendError, OpenError, SyncError};
pub use journal::{DEFAULT_FILE_BYTES, Journal, JournalOptions, Lsn, Opened};
pub use replay::{Apply, Content, CutTail, Entry};
pub use sync::{Fsync, NotAFsync};
