//! A record to put, and why one is not taken.

use anabranch_model::hash::HashKey;
use anabranch_model::limits::PARTITION_KEY_MAX_CHARS;
use anabranch_model::produce::OrderingKey;
use anabranch_model::record::PartitionKey;
use bytes::Bytes;
use std::fmt;

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

// Many records to put at once: one call, one wait for room and one ticket for all of them.

/// Records to put at once, in this order.
///
/// Putting them costs less than putting each, and their outcomes come together. Their order,
/// and that of others, is the same either way.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Bulk {
    /// Keys and data, each key before its data.
    bytes: Vec<u8>,
    /// Where each record ends.
    ends: Vec<RecordEnd>,
    /// Explicit hash keys, by the places of their records.
    explicit: Vec<(usize, HashKey)>,
}

/// Where a record's key ends, and where its data do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RecordEnd {
    key: usize,
    data: usize,
}

/// A record of a bulk.
#[derive(Debug, Clone, Copy)]
pub(super) struct BulkRecord<'a> {
    /// The key, and the data behind it.
    pub(super) both: &'a [u8],
    /// Bytes of the key.
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

    /// What it takes of the buffer.
    #[inline]
    fn cost(&self) -> usize {
        cost(self.key_len, self.both.len() - self.key_len)
    }
}

/// Why a bulk was not taken. Nothing of it was put; it is given back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", at.map(|at| format!("record {at} of the bulk, counted from 0: ")).unwrap_or_default())]
pub struct PutBulkError {
    /// The place of the record that can't be put, from 0. `None` if it is not for a record.
    pub at: Option<usize>,
    /// What stands against it.
    #[source]
    pub why: PutError,
    /// The records.
    pub bulk: Bulk,
}

impl PutBulkError {
    /// The producer is closed.
    pub(super) fn closed(bulk: Bulk) -> Self {
        Self { at: None, why: PutError::Closed, bulk }
    }
}

/// Why a bulk was not taken at once. Nothing of it was put.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TryPutBulkError {
    /// The buffer has no room for all of it now. It is given back.
    #[error("the producer's buffer is full: try again later, or wait with `put_bulk`")]
    Full(Bulk),
    /// It can't be taken at all.
    #[error(transparent)]
    Refused(#[from] PutBulkError),
}

impl fmt::Debug for Bulk {
    /// How much it is, and not all of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulk").field("records", &self.len()).field("bytes", &self.bytes()).finish()
    }
}

impl Bulk {
    /// No records yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// No records yet, and memory for so many, with so many bytes of keys and data together.
    pub fn with_capacity(records: usize, bytes: usize) -> Self {
        let (bytes, ends) = (Vec::with_capacity(bytes), Vec::with_capacity(records));
        Self { bytes, ends, explicit: Vec::new() }
    }

    /// Adds a record. It is copied.
    #[inline]
    pub fn push(&mut self, key: impl AsRef<str>, data: impl AsRef<[u8]>) {
        self.bytes.extend_from_slice(key.as_ref().as_bytes());
        let key = self.bytes.len();
        self.bytes.extend_from_slice(data.as_ref());
        self.ends.push(RecordEnd { key, data: self.bytes.len() });
    }

    /// Adds a record that goes to the shard that takes this hash, instead of the key's.
    pub fn push_explicit(&mut self, key: impl AsRef<str>, data: impl AsRef<[u8]>, hash: HashKey) {
        self.explicit.push((self.ends.len(), hash));
        self.push(key, data);
    }

    /// How many records these are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of all keys and data.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Takes out the record at a place: one that is refused, say. Those behind it are moved.
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

    /// The record at a place.
    #[inline]
    pub(super) fn part(&self, at: usize) -> BulkRecord<'_> {
        let from = if at == 0 { 0 } else { self.ends[at - 1].data };
        let RecordEnd { key, data } = self.ends[at];
        BulkRecord { both: &self.bytes[from..data], key_len: key - from }
    }

    /// The explicit hash key of the record at a place.
    #[inline]
    pub(super) fn explicit(&self, at: usize) -> Option<HashKey> {
        if self.explicit.is_empty() {
            return None;
        }
        let found = self.explicit.binary_search_by_key(&at, |(at, _)| *at).ok()?;
        Some(self.explicit[found].1)
    }

    /// What each takes of the buffer.
    pub(super) fn costs(&self) -> impl Iterator<Item = usize> + Clone {
        (0..self.len()).map(|at| self.part(at).cost())
    }

    /// What all of them take of the buffer, if the stream takes each. Otherwise the first that it
    /// does not take.
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
    /// Of keys and data.
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
