//! What happens to a record that the handler can't do: tried for ever, or put aside whole.
//!
//! ```text
//! handler fails ─► again ─► … ─► attempts are over ─► Park ─┬─ file    one JSON object a line
//!                                                           ├─ table   PostgreSQL or SQLite
//!                                                           └─ stream  under the same key
//!                                 Park::redrive ◄───────────┘ in the order of the stream
//! ```
//!
//! A key whose record was parked goes on: its later records are handled without it. When the
//! parked one is redriven, it comes behind them. Who can't have that keeps [`OnError::Retry`].

mod record;
mod file;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod redrive_lock;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod table;
mod redrive;

pub use file::DeadLetterFile;
pub use record::{DeadLetter, ParseDeadLetterError};
pub use redrive::RedriveSummary;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use table::{DeadLetterTable, TableNameError};

use crate::stream::api::{PutEntry, StreamApi, StreamError, upload_time};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::LeaseKey;
use anabranch_model::record::UserRecord;
use anabranch_model::retry::Fault;
use std::io;
use std::time::Duration;

/// How long a put into a stream of parked records may take beside its upload.
const PUT_TIMEOUT: Duration = Duration::from_secs(10);

/// What happens after the handler fails.
#[derive(Clone, Debug, Default)]
pub enum OnError {
    /// The same records are tried again, with growing pauses, for ever. Nothing passes them in
    /// their lane.
    #[default]
    Retry,
    /// After so many attempts the record is put aside, and its lane goes on, later records of the
    /// same key included.
    DeadLetter {
        /// How often the handler is called for it.
        attempts: u32,
        /// Where it is put.
        to: DeadLetterQueue,
    },
}

/// Where records are put aside, whole: with everything that is needed to handle them later. While
/// it can't be reached, the lane waits.
#[derive(Clone, Debug)]
pub enum DeadLetterQueue {
    /// In a file.
    File(DeadLetterFile),
    /// In a table.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    Table(DeadLetterTable),
    /// In another stream, by the consumer's own Kinesis, under the same partition key. Its data is
    /// the record's with a line of JSON before it, so the stream has to take records that are some
    /// kilobytes larger. [`DeadLetter::of`] reads it again.
    Stream(StreamName),
}

impl From<DeadLetterFile> for DeadLetterQueue {
    fn from(file: DeadLetterFile) -> Self {
        Self::File(file)
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl From<DeadLetterTable> for DeadLetterQueue {
    fn from(table: DeadLetterTable) -> Self {
        Self::Table(table)
    }
}

/// Why a record was not put aside, or not taken up again.
#[derive(Debug, thiserror::Error)]
pub enum DeadLetterError {
    /// The file.
    #[error("{path}: {source}")]
    File {
        /// Its path.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
    /// Another redrive works on the same file or table.
    #[error("{path} is being redriven by somebody else; wait for its end")]
    Busy {
        /// The file's path, or the table's name.
        path: String,
    },
    /// The table.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    #[error("the table {table} for parked records: {source}")]
    Table {
        /// Its name.
        table: String,
        /// What the database said.
        source: sqlx::Error,
    },
    /// The stream.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A stream is not redriven like a file.
    #[error(
        "what was parked in the stream {0} is redriven by a consumer of {0}, whose handler takes \
         each record apart by `DeadLetter::of`"
    )]
    RedriveByConsumer(StreamName),
}

impl DeadLetterQueue {
    /// Puts a record aside. When it returns `Ok`, the record is safe. A record that is put aside
    /// again after a crash may be there twice in a file or stream; a table keeps one.
    pub(super) async fn store<A: StreamApi>(
        &self,
        api: &A,
        shard: &LeaseKey,
        record: &UserRecord,
        error: &str,
    ) -> Result<(), DeadLetterError> {
        let parked = DeadLetter::new(shard, record, error);
        match self {
            Self::File(file) => file.store(&parked).await,
            #[cfg(any(feature = "postgres", feature = "sqlite"))]
            Self::Table(table) => table.store(&parked).await,
            Self::Stream(stream) => {
                let entry = PutEntry {
                    key: record.partition_key.clone(),
                    hash: record.explicit_hash_key,
                    data: parked.to_data(),
                };
                put(api, stream, &entry).await?;
                Ok(())
            }
        }
    }
}

/// Puts a parked record, and gives up when its upload should be over for long.
async fn put<A: StreamApi>(
    api: &A,
    stream: &StreamName,
    entry: &PutEntry,
) -> Result<(), StreamError> {
    let timeout = PUT_TIMEOUT + upload_time(entry.data.len() as u64);
    let put = tokio::time::timeout(timeout, api.put_record(stream, entry, None)).await;
    put.unwrap_or_else(|_| {
        Err(StreamError {
            fault: Fault::ReplyLost,
            operation: "PutRecord",
            target: stream.to_string(),
            detail: format!("no reply within {} ms", timeout.as_millis()),
            source: None,
        })
    })
    .map(drop)
}
