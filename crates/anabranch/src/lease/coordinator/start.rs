//! Why a worker can't start.

use crate::lease::StoreError;
use crate::stream::api::StreamError;
use anabranch_model::ids::StreamName;

/// Why a worker can't start, or can't read one more stream.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no such stream.
    #[error("stream {stream} does not exist: create it, or correct its name or region")]
    MissingStream {
        /// Its name.
        stream: StreamName,
    },
    /// The stream is on its way out.
    #[error(
        "stream {stream} is being deleted: wait until it is gone, create it again, and start with a new application name"
    )]
    DeletedStream {
        /// Its name.
        stream: StreamName,
    },
    /// Another stream has the name now.
    #[error(
        "stream {stream} was deleted and created again (at {found_ms} ms since 1970; this \
         application has read the one of {known_ms}): its checkpoints say nothing about the new \
         stream; start with a new application name, or delete the application's leases"
    )]
    RecreatedStream {
        /// Its name.
        stream: StreamName,
        /// The creation time that the application knows.
        known_ms: u64,
        /// The creation time that the service tells.
        found_ms: u64,
    },
    /// The stream is read already.
    #[error("stream {stream} is being read already")]
    TwiceTheStream {
        /// Its name.
        stream: StreamName,
    },
    /// The service refuses what has to be asked.
    #[error("stream {stream} can't be read")]
    Stream {
        /// Its name.
        stream: StreamName,
        /// What it said.
        #[source]
        error: StreamError,
    },
    /// The lease store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}
