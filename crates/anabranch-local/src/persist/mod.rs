//! Durable storage for `--data DIR`: an append-only journal of everything that changed the engine.
//!
//! ```text
//! DIR/lock                     held by the one server that uses the folder
//! DIR/journal-0000000001.log   header, snapshot, entry, entry, … sealed
//! DIR/journal-0000000002.log   header, snapshot, entry, …
//! ```
//!
//! Each file begins with a snapshot of the metadata, so old files can be deleted once all records
//! in them are past retention.

mod store;
mod entry;
mod metadata_snapshot;
mod maintenance;
mod journal;
mod compact;
mod replay;
mod sync;
mod folder;
mod header;
mod frame;
mod error;

pub use error::OpenError;
pub use journal::{DEFAULT_FILE_BYTES, JournalOptions};
pub use replay::CutTail;
pub use store::RecoveredEngine;
pub use sync::{Fsync, ParseFsyncError};
