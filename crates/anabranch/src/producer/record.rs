//! A record to put, and why one is not taken.

use anabranch_model::hash::HashKey;
use anabranch_model::limits::PARTITION_KEY_MAX_CHARS;
use anabranch_model::produce::OrderingKey;
use anabranch_model::record::PartitionKey;
use bytes::Bytes;

/// What a record costs beside its key and data: its ticket, and its place in a queue.
const RECORD_OVERHEAD_BYTES: usize = 256;

/// A record to put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRecord {
    pub(super) key: PartitionKey,
    pub(super) explicit: Option<HashKey>,
    pub(super) data: Bytes,
}

impl NewRecord {
    /// A record with this partition key.
    pub fn new(key: impl Into<PartitionKey>, data: impl Into<Bytes>) -> Self {
        Self { key: key.into(), explicit: None, data: data.into() }
    }

    /// Goes to the shard that takes this hash, instead of the key's.
    #[must_use]
    pub fn with_explicit_hash_key(mut self, hash: HashKey) -> Self {
        self.explicit = Some(hash);
        self
    }

    /// What its order belongs to.
    pub fn key_id(&self) -> OrderingKey {
        OrderingKey { key: self.key.clone(), explicit: self.explicit }
    }

    /// The bytes of its data.
    pub fn data_len(&self) -> usize {
        self.data.len()
    }

    /// What it takes of the buffer.
    pub(super) fn cost(&self) -> usize {
        cost(self.key.len(), self.data.len())
    }

    /// Whether the stream takes it.
    pub(super) fn check(&self, max_bytes: usize) -> Result<(), PutError> {
        check(self.key.as_bytes(), self.data.len(), max_bytes)
    }
}

/// What a record takes of the buffer.
#[inline]
pub(super) fn cost(key_len: usize, data_len: usize) -> usize {
    key_len + data_len + RECORD_OVERHEAD_BYTES
}

/// Checks that the stream takes a record with this key and this size of data. The service holds
/// both together against the record maximum.
#[inline]
pub(super) fn check(key: &[u8], data_len: usize, max_bytes: usize) -> Result<(), PutError> {
    // Few keys have more bytes than they may have characters, so few are counted.
    if key.is_empty() {
        return Err(PutError::KeyEmpty);
    }
    if key.len() > PARTITION_KEY_MAX_CHARS {
        let chars = String::from_utf8_lossy(key).chars().count();
        if chars > PARTITION_KEY_MAX_CHARS {
            return Err(PutError::KeyTooLong { chars });
        }
    }
    let bytes = key.len().saturating_add(data_len);
    if bytes > max_bytes {
        return Err(PutError::TooLarge { bytes, max_bytes });
    }
    Ok(())
}

/// Why a record was not taken. Nothing of it was sent, and it leaves no hole in its key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// The partition key is empty.
    #[error("the partition key is empty: give one of 1 to {PARTITION_KEY_MAX_CHARS} characters")]
    KeyEmpty,
    /// The partition key is too long.
    #[error(
        "the partition key has {chars} characters: the service takes {PARTITION_KEY_MAX_CHARS}"
    )]
    KeyTooLong {
        /// How many characters it has.
        chars: usize,
    },
    /// The partition key and the data are together too large.
    #[error(
        "the record has {bytes} bytes, partition key included, and the stream takes {max_bytes}: \
         raise the stream's maximum record size, or store the data elsewhere"
    )]
    TooLarge {
        /// Bytes of the partition key and the data.
        bytes: usize,
        /// The stream's record maximum, in bytes.
        max_bytes: usize,
    },
    /// The producer is closed.
    #[error("the producer is closed")]
    Closed,
}

/// Why a record was not taken at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TryPutError {
    /// The buffer has no room for it now. The record is given back.
    #[error("the producer's buffer is full: try again later, or wait with `put`")]
    Full(NewRecord),
    /// It can't be taken at all.
    #[error(transparent)]
    Refused(#[from] PutError),
}
