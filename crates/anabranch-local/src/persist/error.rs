//! Errors of a journal. Each message says what happened, where, and what to do.

use super::header::FORMAT_VERSION;
use std::io;
use std::path::PathBuf;

/// Error of a journal that could not be opened. Nothing in the folder was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refused an operation.
    #[error("cannot {verb} {}: {source}", path.display())]
    Io {
        /// The failed action, as in `cannot list …`.
        verb: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another server has the folder open.
    #[error(
        "{} is in use by another server: stop that server, or choose another folder",
        folder.display()
    )]
    InUse {
        /// The journal's folder.
        folder: PathBuf,
    },
    /// Bytes are damaged, and not only at the end of the journal.
    #[error(
        "{} is damaged at byte {offset}: {problem}. Restore the file from a backup. Alternatively, \
         discard all data from that byte on: truncate the file to {offset} bytes and delete the \
         later journal files",
        path.display()
    )]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// Offset of the first unreadable byte.
        offset: u64,
        /// Description of the damage.
        problem: String,
    },
    /// A file is unreadable from its first byte.
    #[error(
        "{} is not a readable journal file: {problem}. Restore it from a backup, or choose another \
         folder",
        path.display()
    )]
    NotAJournal {
        /// The unreadable file.
        path: PathBuf,
        /// Description of the problem.
        problem: String,
    },
    /// A file is missing: the oldest, the newest, or one in between.
    #[error("{} is missing: restore it from a backup, or choose another folder", path.display())]
    Missing {
        /// The missing file.
        path: PathBuf,
    },
    /// An entry is undamaged, but the engine cannot apply it.
    #[error(
        "cannot apply the entry at byte {offset} of {}: {problem}. Another version wrote it (this \
         one writes format {FORMAT_VERSION}); use that version, or choose another folder",
        path.display()
    )]
    Unusable {
        /// The file with the entry.
        path: PathBuf,
        /// Offset of the entry in the file.
        offset: u64,
        /// The engine's message.
        problem: String,
    },
}

/// Error of an entry that was not accepted. It is not in the journal, and no part of it is on disk.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum AppendError {
    /// The write failed, for example because the disk is full. Later appends may succeed.
    #[error("cannot write to the journal: {0}")]
    Write(String),
    /// An earlier failure left the journal in an unknown state. It accepts nothing until a restart.
    #[error("the journal is closed after an earlier failure: {0}. Restart to recover")]
    Broken(String),
    /// The entry exceeds the maximum length of a frame.
    #[error("an entry of the journal cannot be longer than 4 GiB")]
    TooLong,
}

/// Error of entries that may not be on stable storage: the system's sync failed and cannot be
/// retried.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot sync the journal: {0}. Restart to recover")]
pub(super) struct SyncError(pub(super) String);
