//! What can go wrong with a journal. Each message says what, where, and what to do.

use super::header::FORMAT_VERSION;
use std::io;
use std::path::PathBuf;

/// Why a journal could not be opened. Nothing in the folder was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refused.
    #[error("cannot {verb} {}: {source}", path.display())]
    Io {
        /// What was tried.
        verb: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another server has the folder open.
    #[error("{} is in use by another server: stop that one, or choose another folder", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// Bytes are damaged, and not just at the end of the journal.
    #[error(
        "{} is damaged at byte {offset}: {problem}. Restore the file from a copy; or, to give up \
         everything from there on, cut it to {offset} bytes and remove the later journal files",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first byte of what can't be read.
        offset: u64,
        /// What is wrong there.
        problem: String,
    },
    /// A file can't be read from its first byte on.
    #[error(
        "{} is not a journal file that can be read: {problem}. Restore it from a copy, or choose \
         another folder", path.display()
    )]
    NotAJournal {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file between others, or the oldest, or the newest, is not there.
    #[error("{} is missing: restore it from a copy, or choose another folder", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// An entry is whole, but the engine can't make sense of it.
    #[error(
        "{} holds an entry at byte {offset} that cannot be applied: {problem}. It was written by \
         another version (this one writes format {FORMAT_VERSION}); use that one, or choose \
         another folder",
        path.display()
    )]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Where the entry begins.
        offset: u64,
        /// What the engine said.
        problem: String,
    },
}

/// Why an entry was not taken. It is not in the journal, and nothing of it is on disk.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum AppendError {
    /// The write failed, as on a full disk. Later appends may succeed.
    #[error("cannot write to the journal: {0}")]
    Write(String),
    /// An earlier failure left the journal in an unknown state; it takes nothing until a restart.
    #[error("the journal is closed after an earlier failure: {0}. Restart to recover")]
    Broken(String),
    /// The entry is longer than a frame can hold.
    #[error("an entry of the journal cannot be longer than 4 GiB")]
    TooLong,
}

/// Why entries may not be on stable storage: the system's sync failed, and can't be repeated.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot sync the journal: {0}. Restart to recover")]
pub(super) struct SyncError(pub(super) String);
