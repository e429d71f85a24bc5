//! Aggregation: builds one Kinesis record from many user records.
//!
//! The size is exact at every moment, including the size with one more record, so a Kinesis record
//! never has to be split again because it is too large.

use super::dedup_tag::{DedupTag, FIELD_BYTES};
use super::digest::{Digest, digest, digest_many};
use super::table::{Lookup, StringTable};
use super::wire::{
    FIELD_ROOM_BYTES, FieldTag, VARINT_MAX_BYTES, append_field, varint_len, write_varint,
};
use super::{AGGREGATE_PARTITION_KEY, FRAME_BYTES, MAGIC};
use crate::hash::HashKey;
use crate::limits::RECORD_MAX_KIB_HIGHEST;
use crate::record::PartitionKey;
use bytes::Bytes;
use std::io::Write as _;

/// Largest record, data and key, that any stream accepts, in bytes.
const RECORD_MAX_BYTES_HIGHEST: usize = RECORD_MAX_KIB_HIGHEST * 1024;
/// Largest aggregate data that any stream accepts, in bytes, without its own key.
const AGGREGATE_MAX_BYTES: usize = RECORD_MAX_BYTES_HIGHEST - AGGREGATE_PARTITION_KEY.len();

const RECORD: FieldTag = FieldTag::bytes(3);
const RECORD_KEY: FieldTag = FieldTag::varint(1);
const RECORD_HASH_KEY: FieldTag = FieldTag::varint(2);
const RECORD_DATA: FieldTag = FieldTag::bytes(3);

/// A user record to be added to an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AggregateRecord<'a> {
    /// The user's partition key.
    pub partition_key: &'a str,
    /// The user's explicit hash key, encoded as a decimal number.
    pub explicit_hash_key: Option<HashKey>,
    /// Data of the record.
    pub data: &'a [u8],
}

/// An [`AggregateRecord`] with a key that is known to be UTF-8.
#[derive(Clone, Copy)]
pub(crate) struct RawAggregateRecord<'a> {
    /// The user's partition key, in UTF-8.
    pub(crate) key: &'a [u8],
    pub(crate) explicit_hash_key: Option<HashKey>,
    pub(crate) data: &'a [u8],
}

impl<'a> From<&AggregateRecord<'a>> for RawAggregateRecord<'a> {
    fn from(entry: &AggregateRecord<'a>) -> Self {
        let AggregateRecord { partition_key, explicit_hash_key, data } = *entry;
        Self { key: partition_key.as_bytes(), explicit_hash_key, data }
    }
}

/// Result of adding a record to a builder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushResult {
    /// The record was added.
    Added,
    /// The record would exceed the maximum size. Close the aggregate and add the record to the next
    /// one.
    Full,
    /// The record is larger than any record that the service accepts.
    TooLarge,
}

/// Builder of an aggregate. It is reused: closing it leaves it empty, with its memory.
#[derive(Debug, Clone)]
pub struct AggregateBuilder {
    /// Partition keys.
    keys: StringTable,
    /// Explicit hash keys, as decimal text.
    hash_keys: StringTable,
    /// Encoded records with their tags and lengths.
    body: Vec<u8>,
    /// Additions of each record, so that the last one can be removed.
    added: Vec<AddedSize>,
}

/// Addition of one record to a builder.
#[derive(Debug, Clone, Copy)]
struct AddedSize {
    /// Offset of the record in the body.
    record_at: usize,
    /// Offset of its data in the body; the data ends with the record.
    data_at: usize,
    /// True if the record added its partition key to the table.
    new_key: bool,
    /// True if the record added its explicit hash key to the table.
    new_hash_key: bool,
}

impl Default for AggregateBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl AggregateBuilder {
    /// Creates an empty builder.
    pub fn new() -> Self {
        Self {
            keys: StringTable::new(1),
            hash_keys: StringTable::new(2),
            body: Vec::new(),
            added: Vec::new(),
        }
    }

    /// Returns the number of records.
    #[inline]
    pub fn len(&self) -> usize {
        self.added.len()
    }

    /// Returns true if there are no records.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty()
    }

    /// Returns the exact size of the Kinesis record's data if closed now, in bytes.
    pub fn size(&self) -> usize {
        match self.added.as_slice() {
            [] => 0,
            [alone] => self.body.len() - alone.data_at,
            _ => self.framed_size(),
        }
    }

    /// Returns the exact size of the Kinesis record's data with `next` added, in bytes.
    pub fn size_with(&self, next: &AggregateRecord<'_>) -> usize {
        if self.is_empty() {
            next.data.len()
        } else {
            self.framed_size() + self.fit(&next.into()).added_bytes
        }
    }

    /// Adds `next` if the Kinesis record's data stays within `max_bytes`.
    ///
    /// The first record is added even if it is larger, because it is sent alone and unframed, as
    /// long as the service could accept it.
    pub fn add_within(&mut self, next: &AggregateRecord<'_>, max_bytes: usize) -> PushResult {
        self.add_raw_within(&next.into(), max_bytes)
    }

    /// Adds a record whose key is known to be UTF-8, as [`AggregateBuilder::add_within`] does.
    #[inline]
    pub(crate) fn add_raw_within(
        &mut self,
        next: &RawAggregateRecord<'_>,
        max_bytes: usize,
    ) -> PushResult {
        if next.key.len().saturating_add(next.data.len()) > RECORD_MAX_BYTES_HIGHEST {
            return PushResult::TooLarge;
        }
        let fit = self.fit(next);
        let max_bytes = max_bytes.min(AGGREGATE_MAX_BYTES);
        if !self.is_empty() && self.framed_size() + fit.added_bytes > max_bytes {
            return PushResult::Full;
        }
        self.place(next, &fit);
        PushResult::Added
    }

    /// Removes the last record. Returns true if there was one.
    pub fn remove_last(&mut self) -> bool {
        let Some(last) = self.added.pop() else { return false };
        self.body.truncate(last.record_at);
        if last.new_key {
            self.keys.pop();
        }
        if last.new_hash_key {
            self.hash_keys.pop();
        }
        true
    }

    /// Removes all records.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.hash_keys.clear();
        self.body.clear();
        self.added.clear();
    }

    /// Closes the Kinesis record and empties the builder. Returns `None` if there are no records.
    ///
    /// A single record is sent as it is, under its own key, as the KPL does.
    pub fn close(&mut self) -> Option<UnsealedRecord> {
        let first = *self.added.first()?;
        let closed = if self.len() == 1 {
            UnsealedRecord {
                partition_key: self.first_key(),
                explicit_hash_key: self.first_explicit_hash_key(first),
                data: self.body[first.data_at..].to_vec(),
                records: 1,
                framed: false,
            }
        } else {
            UnsealedRecord {
                partition_key: aggregate_key(),
                explicit_hash_key: Some(HashKey::effective(
                    self.first_key().as_str(),
                    self.first_explicit_hash_key(first),
                )),
                data: self.framed(),
                records: self.len(),
                framed: true,
            }
        };
        self.clear();
        Some(closed)
    }

    /// Closes the Kinesis record, with a deduplication tag if it is an aggregate. The data is then
    /// larger than [`AggregateBuilder::size`] by at most
    /// [`MARK_MAX_BYTES`](super::dedup_tag::MARK_MAX_BYTES).
    pub fn close_tagged(&mut self, mark: DedupTag) -> Option<UnsealedRecord> {
        if let [_, .., last] = self.added[..] {
            // The field is appended to the last record's other fields, so only its length changes.
            let bytes = self.body.len() - last.record_at - 1;
            let length = length_before(bytes);
            let mut longer = [0; VARINT_MAX_BYTES];
            let written = write_varint(&mut longer, bytes - length + FIELD_BYTES);
            let from = last.record_at + 1;
            self.body.splice(from..from + length, longer[..written].iter().copied());
            self.body.extend_from_slice(&mark.field());
        }
        self.close()
    }

    /// Returns the magic and the message, with capacity for the digest.
    fn framed(&self) -> Vec<u8> {
        let mut data = Vec::with_capacity(self.framed_size());
        data.extend_from_slice(&MAGIC);
        data.extend_from_slice(self.keys.wire());
        data.extend_from_slice(self.hash_keys.wire());
        data.extend_from_slice(&self.body);
        data
    }

    #[inline]
    fn framed_size(&self) -> usize {
        FRAME_BYTES + self.keys.wire().len() + self.hash_keys.wire().len() + self.body.len()
    }

    fn first_key(&self) -> PartitionKey {
        PartitionKey::from_utf8(Bytes::copy_from_slice(self.keys.text(0)))
            .expect("the table is filled from str only")
    }

    fn first_explicit_hash_key(&self, first: AddedSize) -> Option<HashKey> {
        first.new_hash_key.then(|| {
            let text = std::str::from_utf8(self.hash_keys.text(0)).expect("digits are ASCII");
            text.parse().expect("the table is filled from hash keys only")
        })
    }

    /// Returns the table entries and the size that adding `next` requires.
    #[inline]
    fn fit(&self, next: &RawAggregateRecord<'_>) -> EncodedFit {
        let key = self.keys.find(next.key);
        let mut new_strings = match key {
            Lookup::New { .. } => StringTable::added_bytes(next.key.len()),
            Lookup::Existing(_) => 0,
        };
        let data = next.data.len();
        let mut inner = 1 + varint_len(key.number()) + 1 + varint_len(data) + data;
        let hash_key = next.explicit_hash_key.map(|hash_key| {
            let digits = HashKeyDigits::of(hash_key);
            let found = self.hash_keys.find(digits.text());
            if let Lookup::New { .. } = found {
                new_strings += StringTable::added_bytes(digits.text().len());
            }
            inner += 1 + varint_len(found.number());
            (found, digits)
        });
        EncodedFit {
            key,
            hash_key,
            inner,
            added_bytes: new_strings + 1 + varint_len(inner) + inner,
        }
    }

    #[inline]
    fn place(&mut self, next: &RawAggregateRecord<'_>, fit: &EncodedFit) {
        if let Lookup::New { hash, .. } = fit.key {
            self.keys.push(next.key, hash);
        }
        let record_at = self.body.len();
        self.body.reserve(4 * FIELD_ROOM_BYTES + next.data.len());
        append_field(&mut self.body, RECORD, fit.inner);
        append_field(&mut self.body, RECORD_KEY, fit.key.number());
        if let Some((found, digits)) = &fit.hash_key {
            if let Lookup::New { hash, .. } = *found {
                self.hash_keys.push(digits.text(), hash);
            }
            append_field(&mut self.body, RECORD_HASH_KEY, found.number());
        }
        append_field(&mut self.body, RECORD_DATA, next.data.len());
        let data_at = self.body.len();
        self.body.extend_from_slice(next.data);
        let new_key = matches!(fit.key, Lookup::New { .. });
        let new_hash_key = matches!(fit.hash_key, Some((Lookup::New { .. }, _)));
        self.added.push(AddedSize { record_at, data_at, new_key, new_hash_key });
    }
}

/// Returns how many of `bytes` bytes are the length prefix of the others.
fn length_before(bytes: usize) -> usize {
    (1..=VARINT_MAX_BYTES)
        .find(|length| varint_len(bytes - length) == *length)
        .expect("a record begins with its length")
}

/// Returns the partition key of every aggregate, without an allocation.
fn aggregate_key() -> PartitionKey {
    PartitionKey::from_utf8(Bytes::from_static(AGGREGATE_PARTITION_KEY.as_bytes()))
        .expect("the aggregates' own key is UTF-8")
}

/// Table lookups of a record's strings, and the size that it adds.
struct EncodedFit {
    key: Lookup,
    hash_key: Option<(Lookup, HashKeyDigits)>,
    /// Size of the record's own message in bytes.
    inner: usize,
    /// Growth of the Kinesis record in bytes.
    added_bytes: usize,
}

/// A hash key in decimal, without an allocation.
struct HashKeyDigits {
    bytes: [u8; HashKeyDigits::MAX],
    len: usize,
}

impl HashKeyDigits {
    /// Digits of 2^128 − 1.
    const MAX: usize = 39;

    fn of(hash_key: HashKey) -> Self {
        let mut bytes = [0; Self::MAX];
        let mut rest = bytes.as_mut_slice();
        write!(rest, "{hash_key}").expect("39 digits hold every hash key");
        let len = Self::MAX - rest.len();
        Self { bytes, len }
    }

    fn text(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A Kinesis record without its digest. Several are sealed together, because computing their
/// digests side by side is cheaper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsealedRecord {
    partition_key: PartitionKey,
    explicit_hash_key: Option<HashKey>,
    data: Vec<u8>,
    records: usize,
    framed: bool,
}

/// A Kinesis record ready to be put: an aggregate, or a single user record. Its bytes never change
/// again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KinesisRecord {
    /// Partition key to put it under.
    pub partition_key: PartitionKey,
    /// Explicit hash key: for an aggregate the hash key of its first record, for a single user
    /// record that of the user, if any.
    pub explicit_hash_key: Option<HashKey>,
    /// Data to put.
    pub data: Bytes,
    /// Number of user records.
    pub records: usize,
}

impl KinesisRecord {
    /// Returns the bytes that the service counts.
    pub fn bytes(&self) -> usize {
        self.partition_key.len() + self.data.len()
    }
}

impl UnsealedRecord {
    /// Seals this Kinesis record.
    pub fn seal(self) -> KinesisRecord {
        let digest = self.message().map(digest);
        self.with_digest(digest)
    }

    fn message(&self) -> Option<&[u8]> {
        self.framed.then(|| &self.data[MAGIC.len()..])
    }

    fn with_digest(mut self, digest: Option<Digest>) -> KinesisRecord {
        self.data.extend_from_slice(digest.as_ref().map_or(&[], |digest| digest));
        KinesisRecord {
            partition_key: self.partition_key,
            explicit_hash_key: self.explicit_hash_key,
            data: self.data.into(),
            records: self.records,
        }
    }
}

/// Seals each Kinesis record, in order.
pub fn seal_many(closed: Vec<UnsealedRecord>) -> Vec<KinesisRecord> {
    let mut messages: Vec<(usize, &[u8])> =
        closed.iter().enumerate().filter_map(|(at, one)| Some((at, one.message()?))).collect();
    // Sorted by length, because the longest message of a SIMD group determines its time.
    messages.sort_unstable_by_key(|(_, message)| message.len());
    let (places, messages): (Vec<usize>, Vec<&[u8]>) = messages.into_iter().unzip();
    let mut digests = vec![None; closed.len()];
    for (at, digest) in places.into_iter().zip(digest_many(&messages)) {
        digests[at] = Some(digest);
    }
    closed.into_iter().zip(digests).map(|(one, digest)| one.with_digest(digest)).collect()
}

#[cfg(test)]
mod tests;
