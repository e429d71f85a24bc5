//! Why a worker can't start, and what it does first.

use super::LeaseContext;
use super::open::{PAUSE_MS, check_store_retryable};
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::StreamError;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::position::Position;

/// The longest that one attempt to make the table is waited for, in milliseconds. It may be large,
/// and others may be making it.
const PREPARE_MS: u64 = 120_000;

/// Why a worker can't start, or can't read one more stream.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorStartError {
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
    StreamRecreated {
        /// Its name.
        stream: StreamName,
        /// The creation time that the application knows.
        known_ms: u64,
        /// The creation time that the service tells.
        found_ms: u64,
    },
    /// Another stream has the name now, as a row of KCL's table shows, which keeps no creation time.
    #[error(
        "stream {stream} was deleted and created again: the checkpoint {checkpoint} of {shard} lies \
         before the first record of the stream that has the name now (created at {found_ms} ms \
         since 1970), so the application's checkpoints say nothing about it; start with a new \
         application name, or delete the application's leases"
    )]
    ForeignCheckpoint {
        /// The stream's name.
        stream: StreamName,
        /// The shard of the row.
        shard: ShardId,
        /// The row's checkpoint.
        checkpoint: Position,
        /// The creation time that the service tells.
        found_ms: u64,
    },
    /// The stream is read already.
    #[error("stream {stream} is being read already: name it once, by its name or by its ARN")]
    DuplicateStream {
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
    /// Somebody else works on the lease table.
    #[error("the lease table must not be touched: {hindrance}")]
    TableInUse {
        /// Who, and what to do.
        hindrance: String,
    },
    /// The lease store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The error of a store whose table or schema is not there in time.
fn not_ready_in_time(within_ms: u64) -> StoreError {
    let seconds = within_ms / 1_000;
    StoreError::Unreachable {
        store: "in use".into(),
        detail: format!("it was not ready for use within {seconds} s; it is asked again"),
        source: None,
    }
}

/// Makes the store's table or schema, and waits for a store that can't be reached.
pub(super) async fn prepare<S: LeaseStore, A>(
    tools: &LeaseContext<S, A>,
) -> Result<(), CoordinatorStartError> {
    loop {
        let prepared = tokio::select! {
            biased;
            prepared = tools.store.prepare() => Some(prepared),
            () = tools.clock.sleep(PREPARE_MS) => None,
        };
        match prepared {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => check_store_retryable(tools, error)?,
            None => tools.emit_store_failure("start", &not_ready_in_time(PREPARE_MS)),
        }
        tools.clock.sleep(PAUSE_MS).await;
    }
}
