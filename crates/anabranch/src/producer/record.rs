//! Records and bulks to put, and the errors of a put that is not accepted.

use anabranch_model::hash::HashKey;
use anabranch_model::limits::PARTITION_KEY_MAX_CHARS;
use anabranch_model::produce::OrderingKey;
use anabranch_model::record::PartitionKey;
use bytes::Bytes;
use std::fmt;

/// Bytes that a record costs in addition to its key and data: its ticket and its queue entry.
const RECORD_OVERHEAD_BYTES: usize = 256;

/// A record to put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRecord {
    pub(super) key: PartitionKey,
    pub(super) explicit: Option<HashKey>,
    pub(super) data: Bytes,
}

impl NewRecord {
    /// Creates a record with this partition key.
    pub fn new(key: impl Into<PartitionKey>, data: impl Into<Bytes>) -> Self {
        Self { key: key.into(), explicit: None, data: data.into() }
    }

    /// Routes the record to the shard that owns `hash`, instead of the hash of its key.
    #[must_use]
    pub fn with_explicit_hash_key(mut self, hash: HashKey) -> Self {
        self.explicit = Some(hash);
        self
    }

    /// Returns the key within which the record is ordered.
    pub fn key_id(&self) -> OrderingKey {
        OrderingKey { key: self.key.clone(), explicit: self.explicit }
    }

    /// Returns the size of the data in bytes.
    pub fn data_len(&self) -> usize {
        self.data.len()
    }

    /// Returns the bytes that the record occupies in the buffer.
    pub(super) fn cost(&self) -> usize {
        cost(self.key.len(), self.data.len())
    }

    /// Checks that the stream accepts the record. `max_bytes` is the stream's record maximum.
    pub(super) fn check(&self, max_bytes: usize) -> Result<(), PutError> {
        check(self.key.as_bytes(), self.data.len(), max_bytes)
    }
}

/// Returns the bytes that a record occupies in the buffer.
#[inline]
pub(super) fn cost(key_len: usize, data_len: usize) -> usize {
    key_len + data_len + RECORD_OVERHEAD_BYTES
}

/// Checks that the stream accepts a record with this key and this size of data. The service counts
/// both against the record maximum.
#[inline]
pub(super) fn check(key: &[u8], data_len: usize, max_bytes: usize) -> Result<(), PutError> {
    // A key of at most `PARTITION_KEY_MAX_CHARS` bytes cannot have too many characters, so few keys
    // need counting.
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

/// Reason why a record was not accepted. Nothing of it was sent, and its key stays in order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// The partition key is empty.
    #[error("the partition key is empty: use 1 to {PARTITION_KEY_MAX_CHARS} characters")]
    KeyEmpty,
    /// The partition key is too long.
    #[error("the partition key has {chars} characters: the maximum is {PARTITION_KEY_MAX_CHARS}")]
    KeyTooLong {
        /// Characters of the key.
        chars: usize,
    },
    /// The partition key and the data are together too large.
    #[error(
        "the record has {bytes} bytes, partition key included, but the stream accepts {max_bytes}: \
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

/// Reason why a record was not accepted without waiting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TryPutError {
    /// The buffer has not enough free space now. Contains the record.
    #[error("the producer's buffer is full: try again later, or wait with `put`")]
    Full(NewRecord),
    /// The record cannot be accepted at all.
    #[error(transparent)]
    Refused(#[from] PutError),
}

// Bulks: many records with one call, one wait for buffer space and one ticket.

/// An ordered list of records to put together.
///
/// Putting a bulk costs less than putting each record, and all outcomes arrive together. The order
/// of its records, and of other records, is the same either way.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Bulk {
    /// Keys and data, each key before its data.
    bytes: Vec<u8>,
    /// End of each record in `bytes`.
    ends: Vec<RecordEnd>,
    /// Explicit hash keys with the index of their record, in ascending order.
    explicit: Vec<(usize, HashKey)>,
}

/// End offsets of a record's key and of its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RecordEnd {
    key: usize,
    data: usize,
}

/// A record of a bulk.
#[derive(Debug, Clone, Copy)]
pub(super) struct BulkRecord<'a> {
    /// The key, followed by the data.
    pub(super) both: &'a [u8],
    /// Size of the key in bytes.
    pub(super) key_len: usize,
}

impl<'a> BulkRecord<'a> {
    #[inline]
    pub(super) fn key(&self) -> &'a [u8] {
        &self.both[..self.key_len]
    }

    #[inline]
    fn data(&self) -> &'a [u8] {
        &self.both[self.key_len..]
    }

    /// Returns the bytes that the record occupies in the buffer.
    #[inline]
    fn cost(&self) -> usize {
        cost(self.key_len, self.both.len() - self.key_len)
    }
}

/// Reason why a bulk was not accepted. None of its records was put.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", at.map(|at| format!("record {at} of the bulk (counted from 0): ")).unwrap_or_default())]
#[non_exhaustive]
pub struct PutBulkError {
    /// Index of the record that cannot be put, from 0. `None` if the reason is not a record.
    pub at: Option<usize>,
    /// The reason.
    #[source]
    pub why: PutError,
    /// The bulk, unchanged.
    pub bulk: Bulk,
}

impl PutBulkError {
    /// Returns the error of a put to a closed producer.
    pub(super) fn closed(bulk: Bulk) -> Self {
        Self { at: None, why: PutError::Closed, bulk }
    }
}

/// Reason why a bulk was not accepted without waiting. None of its records was put.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TryPutBulkError {
    /// The buffer has not enough free space for all of it now. Contains the bulk.
    #[error("the producer's buffer is full: try again later, or wait with `put_bulk`")]
    Full(Bulk),
    /// The bulk cannot be accepted at all.
    #[error(transparent)]
    Refused(#[from] PutBulkError),
}

impl fmt::Debug for Bulk {
    /// Formats the number of records and bytes, not the content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulk").field("records", &self.len()).field("bytes", &self.bytes()).finish()
    }
}

impl Bulk {
    /// Creates an empty bulk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty bulk with memory for `records` records and `bytes` bytes of keys and data.
    pub fn with_capacity(records: usize, bytes: usize) -> Self {
        let (bytes, ends) = (Vec::with_capacity(bytes), Vec::with_capacity(records));
        Self { bytes, ends, explicit: Vec::new() }
    }

    /// Appends a copy of a record.
    #[inline]
    pub fn push(&mut self, key: impl AsRef<str>, data: impl AsRef<[u8]>) {
        self.bytes.extend_from_slice(key.as_ref().as_bytes());
        let key = self.bytes.len();
        self.bytes.extend_from_slice(data.as_ref());
        self.ends.push(RecordEnd { key, data: self.bytes.len() });
    }

    /// Appends a copy of a record, routed to the shard that owns `hash` instead of the hash of its
    /// key.
    pub fn push_explicit(&mut self, key: impl AsRef<str>, data: impl AsRef<[u8]>, hash: HashKey) {
        self.explicit.push((self.ends.len(), hash));
        self.push(key, data);
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if the bulk has no records.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the size of all keys and data in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Removes and returns record `at`, for example one that was refused. Later records move up by
    /// one. Returns `None` if there is no such record.
    pub fn remove(&mut self, at: usize) -> Option<NewRecord> {
        if at >= self.len() {
            return None;
        }
        let (part, explicit) = (self.part(at), self.explicit(at));
        let gone = part.both.len();
        let from = self.ends[at].data - gone;
        let key = PartitionKey::from_utf8(Bytes::copy_from_slice(part.key())).ok()?;
        let record = NewRecord { key, explicit, data: Bytes::copy_from_slice(part.data()) };
        self.bytes.drain(from..from + gone);
        self.ends.remove(at);
        for end in &mut self.ends[at..] {
            end.key -= gone;
            end.data -= gone;
        }
        self.explicit.retain(|(place, _)| *place != at);
        self.explicit
            .iter_mut()
            .filter(|(place, _)| *place > at)
            .for_each(|(place, _)| *place -= 1);
        Some(record)
    }

    /// Returns the key and data of record `at`.
    #[inline]
    pub(super) fn part(&self, at: usize) -> BulkRecord<'_> {
        let from = if at == 0 { 0 } else { self.ends[at - 1].data };
        let RecordEnd { key, data } = self.ends[at];
        BulkRecord { both: &self.bytes[from..data], key_len: key - from }
    }

    /// Returns the explicit hash key of record `at`.
    #[inline]
    pub(super) fn explicit(&self, at: usize) -> Option<HashKey> {
        if self.explicit.is_empty() {
            return None;
        }
        let found = self.explicit.binary_search_by_key(&at, |(at, _)| *at).ok()?;
        Some(self.explicit[found].1)
    }

    /// Returns the bytes that each record occupies in the buffer.
    pub(super) fn costs(&self) -> impl Iterator<Item = usize> + Clone {
        (0..self.len()).map(|at| self.part(at).cost())
    }

    /// Returns the bytes that all records occupy in the buffer. If the stream does not accept a
    /// record, returns the index and error of the first such record.
    pub(super) fn check(&self, max_bytes: usize) -> Result<usize, (usize, PutError)> {
        let mut sum = 0_usize;
        for at in 0..self.len() {
            let part = self.part(at);
            check(part.key(), part.data().len(), max_bytes).map_err(|why| (at, why))?;
            sum = sum.saturating_add(part.cost());
        }
        Ok(sum)
    }
}

impl Extend<NewRecord> for Bulk {
    fn extend<I: IntoIterator<Item = NewRecord>>(&mut self, records: I) {
        for NewRecord { key, explicit, data } in records {
            match explicit {
                Some(hash) => self.push_explicit(key.as_str(), data, hash),
                None => self.push(key.as_str(), data),
            }
        }
    }
}

impl<K: AsRef<str>, D: AsRef<[u8]>> FromIterator<(K, D)> for Bulk {
    /// Collects pairs of key and data.
    fn from_iter<I: IntoIterator<Item = (K, D)>>(records: I) -> Self {
        let mut bulk = Self::new();
        records.into_iter().for_each(|(key, data)| bulk.push(key, data));
        bulk
    }
}

impl FromIterator<NewRecord> for Bulk {
    fn from_iter<I: IntoIterator<Item = NewRecord>>(records: I) -> Self {
        let mut bulk = Self::new();
        bulk.extend(records);
        bulk
    }
}
