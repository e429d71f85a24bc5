//! Error policy of a consumer, and dead letters: records set aside after too many failed attempts.
//!
//! ```text
//! handler fails ─► retry ─► … ─► attempts used up ─► DeadLetterQueue
//!                                                     ├─ File    one JSON object per line
//!                                                     ├─ Table   PostgreSQL or SQLite
//!                                                     └─ Stream  under the same partition key
//! DeadLetterQueue::redrive ◄─ file or table, in stream order
//! ```
//!
//! After a record became a dead letter, later records of the same key are handled without it. A
//! redrive delivers it after them. Applications that cannot accept this reordering keep
//! [`OnError::Retry`].

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

/// Timeout of a put into a dead-letter stream, without the time to upload the record.
const PUT_TIMEOUT: Duration = Duration::from_secs(10);

/// Policy for records whose handler fails.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum OnError {
    /// Retries the same records without limit, with growing pauses. Later records of the lane wait.
    #[default]
    Retry,
    /// Sets the record aside after `attempts` failed attempts. The lane then continues, also with
    /// later records of the same key.
    DeadLetter {
        /// Number of failed attempts; at least 1. A call with several records is first retried as a
        /// whole, and then record by record.
        attempts: u32,
        /// Queue that receives the record.
        to: DeadLetterQueue,
    },
}

/// Store for dead letters. Each dead letter contains everything needed to handle the record later.
///
/// While the store is unreachable, the lane waits.
#[derive(Clone, Debug)]
pub enum DeadLetterQueue {
    /// A local file.
    File(DeadLetterFile),
    /// A database table.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    Table(DeadLetterTable),
    /// Another stream, written through the consumer's own Kinesis client under the same partition
    /// key.
    ///
    /// The data is the record's data preceded by one line of JSON, so the stream must accept
    /// records that are a few kilobytes larger. [`DeadLetter::of`] decodes it.
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

/// Error of storing or redriving dead letters.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum DeadLetterError {
    /// The dead-letter file could not be read or written.
    #[error("dead-letter file {path}: {source}")]
    File {
        /// Path of the file.
        path: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Another redrive is running on the same file or table.
    #[error("another redrive of {path} is running; wait until it has finished")]
    Busy {
        /// Path of the file, or name of the table.
        path: String,
    },
    /// The database rejected or failed a statement on the dead-letter table.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    #[error("dead-letter table {table}: {source}")]
    Table {
        /// Name of the table.
        table: String,
        /// Error of the database.
        source: sqlx::Error,
    },
    /// The put into the dead-letter stream failed.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A dead-letter stream is redriven by a consumer of that stream, not by
    /// [`DeadLetterQueue::redrive`].
    #[error(
        "dead letters in stream {0} are redriven by a consumer of {0}, whose handler decodes each \
         record with `DeadLetter::of`"
    )]
    RedriveByConsumer(StreamName),
}

impl DeadLetterQueue {
    /// Stores a record as a dead letter. After `Ok` the record is durable.
    ///
    /// A record that is stored again after a crash may be present twice in a file or stream; a
    /// table keeps one row.
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

/// Puts a dead letter, with a timeout that allows for the upload of its data.
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
