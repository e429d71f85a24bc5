//! Deaggregation of KPL aggregates, exactly as KCL does it.
//!
//! KCL never fails on a record: a record that is not a valid aggregate is delivered as it is. Two
//! cases lose records, in KCL and here, and both are reported so that the caller can count them. A
//! user record outside the shard's range discards its whole aggregate, because the producer sends
//! all of it again. A user record that points outside the tables ends the aggregate before it.
//!
//! Allocations never depend on a length that the data claims, only on bytes that are present: at
//! most 12 bytes for a table string and 20 for a user record. Keys and user records are created one
//! by one, on demand.

use super::dedup_tag::DedupTag;
use super::digest::{DIGEST_BYTES, Digest, digest, digest_many, hash_keys};
use super::wire::{FieldTag, MalformedMessage, MessageReader, Span};
use super::{FRAME_BYTES, MAGIC};
use crate::hash::{HashKey, HashRange};
use crate::record::{PartitionKey, Record, UserRecord};
use bytes::Bytes;
use std::borrow::Cow;

const KEYS: FieldTag = FieldTag::bytes(1);
const HASH_KEYS: FieldTag = FieldTag::bytes(2);
const RECORDS: FieldTag = FieldTag::bytes(3);
const RECORD_KEY: FieldTag = FieldTag::varint(1);
const RECORD_HASH_KEY: FieldTag = FieldTag::varint(2);
const RECORD_DATA: FieldTag = FieldTag::bytes(3);
const RECORD_TAGS: FieldTag = FieldTag::bytes(4);
const TAG_KEY: FieldTag = FieldTag::bytes(1);
const TAG_VALUE: FieldTag = FieldTag::bytes(2);

/// Tag and length of a short field.
const FIELD_HEAD_BYTES: usize = 2;
/// Maximum number of fields to reserve for, based on the length of the first one.
const RESERVED_MAX: usize = 512;

/// Result of decoding a Kinesis record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodedAggregate {
    /// Not an aggregate. The record is delivered as it is.
    Plain(PlainReason),
    /// A valid aggregate and its user records, possibly none.
    Records(UserRecords),
    /// An aggregate with a user record that belongs to another shard. Nothing of it is delivered.
    Misrouted {
        /// Number of user records discarded.
        dropped: usize,
        /// Index of the first user record outside the range.
        misrouted: usize,
    },
    /// An aggregate with an unreadable user record. It and all following ones are lost.
    Partial {
        /// User records before it.
        kept: UserRecords,
        /// Number of user records lost.
        lost: usize,
        /// Reason why the first lost one cannot be read.
        why: UnreadableRecord,
    },
}

/// Reason why a record is treated as plain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlainReason {
    /// It has no magic, or nothing between magic and digest.
    NotFramed,
    /// It is framed, but the digest does not match the message.
    DigestMismatch,
    /// The digest matches, but the message is not that of an aggregate.
    Malformed,
}

/// Reason why a user record of an aggregate cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnreadableRecord {
    /// Its partition key index points outside the table.
    NoSuchKey,
    /// Its explicit hash key index points outside the table.
    NoSuchHashKey,
    /// Its explicit hash key is not a number.
    NotANumber,
}

/// Deaggregates `record` if it is an aggregate. `range` is the hash range of the shard from which
/// it was read, or [`HashRange::ALL`] if that is unknown.
///
/// Removes only one layer: a user record whose data looks like an aggregate stays as it is.
pub fn decode(record: &Record, range: HashRange) -> DecodedAggregate {
    let frame = match message_of(&record.data) {
        Some((message, written)) => AggregateFrame::of(digest(message), written),
        None => AggregateFrame::None,
    };
    decode_framed(record, frame, range)
}

/// Framing of a record's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AggregateFrame {
    /// No frame of an aggregate.
    None,
    /// The frame of an aggregate, with a digest that does not match the message.
    Broken,
    /// The frame of an aggregate, with a matching digest.
    Sound,
}

impl AggregateFrame {
    fn of(digest: Digest, written: &[u8]) -> Self {
        if digest == written { Self::Sound } else { Self::Broken }
    }
}

/// Returns the frame of each record, in order. Computing several digests side by side is cheaper
/// than one after the other.
pub fn frames(records: &[Record]) -> Vec<AggregateFrame> {
    let mut frames = vec![AggregateFrame::None; records.len()];
    let (mut places, mut messages, mut written) = (Vec::new(), Vec::new(), Vec::new());
    for (at, record) in records.iter().enumerate() {
        if let Some((message, digest)) = message_of(&record.data) {
            places.push(at);
            messages.push(message);
            written.push(digest);
        }
    }
    for ((at, written), digest) in places.into_iter().zip(written).zip(digest_many(&messages)) {
        frames[at] = AggregateFrame::of(digest, written);
    }
    frames
}

/// Returns the message between the magic and the digest of an aggregate, and the digest.
fn message_of(data: &[u8]) -> Option<(&[u8], &[u8])> {
    if data.len() <= FRAME_BYTES {
        return None;
    }
    data.strip_prefix(&MAGIC)?.split_at_checked(data.len() - FRAME_BYTES)
}

/// Deaggregates a record with a known frame, as [`decode`] does.
pub fn decode_framed(record: &Record, frame: AggregateFrame, range: HashRange) -> DecodedAggregate {
    match frame {
        AggregateFrame::None => return DecodedAggregate::Plain(PlainReason::NotFramed),
        AggregateFrame::Broken => return DecodedAggregate::Plain(PlainReason::DigestMismatch),
        AggregateFrame::Sound => {}
    }
    let data = &record.data;
    match AggregateMessage::read(data, MAGIC.len()..data.len() - DIGEST_BYTES) {
        Ok(message) => message.validate(record, range),
        Err(MalformedMessage) => DecodedAggregate::Plain(PlainReason::Malformed),
    }
}

/// A parsed message, as spans of the record's data.
struct AggregateMessage {
    keys: Vec<KeySpan>,
    hash_keys: Vec<Span32>,
    records: Vec<RawRecord>,
    /// Deduplication tag of the producer.
    mark: Option<DedupTag>,
}

/// A [`Span`] in half the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span32 {
    start: u32,
    end: u32,
}

impl Span32 {
    /// Converts a span. Fails for data beyond 4 GiB, which no stream carries.
    fn of(span: &Span) -> Result<Self, MalformedMessage> {
        let place = |at: usize| u32::try_from(at).map_err(|_| MalformedMessage);
        Ok(Self { start: place(span.start)?, end: place(span.end)? })
    }

    #[inline]
    fn of_bytes(self, data: &[u8]) -> &[u8] {
        &data[self.start as usize..self.end as usize]
    }

    #[inline]
    fn slice(self, data: &Bytes) -> Bytes {
        data.slice(self.start as usize..self.end as usize)
    }
}

/// A partition key of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KeySpan {
    span: Span32,
    /// True if the key is UTF-8. Many records may share the key, so it is checked once.
    utf8: bool,
}

impl KeySpan {
    fn of(span: &Span, data: &[u8]) -> Result<Self, MalformedMessage> {
        let span = Span32::of(span)?;
        let bytes = span.of_bytes(data);
        Ok(Self { span, utf8: bytes.is_ascii() || std::str::from_utf8(bytes).is_ok() })
    }

    /// Returns the bytes of the key. Invalid UTF-8 is replaced, as Java does.
    fn text(self, data: &[u8]) -> Cow<'_, [u8]> {
        let bytes = self.span.of_bytes(data);
        if self.utf8 {
            return Cow::Borrowed(bytes);
        }
        Cow::Owned(String::from_utf8_lossy(bytes).into_owned().into_bytes())
    }

    #[inline]
    fn key(self, data: &Bytes) -> PartitionKey {
        let Span32 { start, end } = self.span;
        if self.utf8 {
            return PartitionKey::of_checked(data, start as usize..end as usize);
        }
        PartitionKey::from(String::from_utf8_lossy(self.span.of_bytes(data)).into_owned())
    }
}

/// A user record of the message, with unresolved indices.
///
/// Indices have 64 bits on the wire. KCL uses the low 32 bits, so this does too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RawRecord {
    key: u32,
    hash_key: Option<u32>,
    data: Span32,
}

impl AggregateMessage {
    fn read(data: &[u8], span: Span) -> Result<Self, MalformedMessage> {
        let (keys, hash_keys, records) = (Vec::new(), Vec::new(), Vec::new());
        let mut message = Self { keys, hash_keys, records, mark: None };
        let mut reader = MessageReader::new(data, span);
        while let Some(tag) = reader.tag()? {
            match tag {
                KEYS => {
                    let span = reader.bytes()?;
                    if message.keys.is_empty() {
                        message.keys.reserve(count_similar_fields(&reader, &span));
                    }
                    message.keys.push(KeySpan::of(&span, data)?);
                }
                HASH_KEYS => message.hash_keys.push(Span32::of(&reader.bytes()?)?),
                RECORDS => {
                    let span = reader.bytes()?;
                    if message.records.is_empty() {
                        message.records.reserve(count_similar_fields(&reader, &span));
                    }
                    let nested = reader.nested(span);
                    message.records.push(RawRecord::read(nested, data, &mut message.mark)?);
                }
                _ => reader.skip(tag)?,
            }
        }
        Ok(message)
    }

    /// Checks range and readability of each user record in order.
    fn validate(mut self, record: &Record, range: HashRange) -> DecodedAggregate {
        let places = self.key_places(&record.data, range);
        let mut end = None;
        for (at, raw) in self.records.iter().enumerate() {
            match raw.place(&places, &self.hash_keys, &record.data) {
                Ok(Some(place)) if range.contains(place) => {}
                Ok(_) => {
                    return DecodedAggregate::Misrouted {
                        dropped: self.records.len(),
                        misrouted: at,
                    };
                }
                Err(why) => {
                    end = Some((at, why));
                    break;
                }
            }
        }
        let lost = end.map_or(0, |(at, _)| self.records.len() - at);
        self.records.truncate(self.records.len() - lost);
        let kept = UserRecords {
            carrier: record.clone(),
            keys: self.keys,
            hash_keys: self.hash_keys,
            records: self.records.into_iter().enumerate(),
            mark: self.mark,
        };
        match end {
            None => DecodedAggregate::Records(kept),
            Some((_, why)) => DecodedAggregate::Partial { kept, lost, why },
        }
    }

    /// Returns the hash of each partition key. If the range is the whole space, the hashes are not
    /// needed, so no MD5 is computed.
    fn key_places(&self, data: &Bytes, range: HashRange) -> Vec<HashKey> {
        if range == HashRange::ALL {
            return vec![HashKey::MIN; self.keys.len()];
        }
        let mut places = Vec::with_capacity(self.keys.len());
        for chunk in self.keys.chunks(64) {
            // Invalid UTF-8 is hashed after replacement.
            let keys: Vec<Cow<'_, [u8]>> = chunk.iter().map(|key| key.text(data)).collect();
            let bytes: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
            places.extend(hash_keys(&bytes));
        }
        places
    }
}

/// Returns the number of fields to reserve for, assuming that all are as long as the first one.
fn count_similar_fields(reader: &MessageReader<'_>, first: &Span) -> usize {
    let others = reader.left() / (first.len() + FIELD_HEAD_BYTES);
    others.min(RESERVED_MAX) + 1
}

impl RawRecord {
    /// Reads a user record, and the deduplication tag if it carries one.
    #[inline]
    fn read(
        mut reader: MessageReader<'_>,
        buffer: &[u8],
        mark: &mut Option<DedupTag>,
    ) -> Result<Self, MalformedMessage> {
        let (mut key, mut hash_key, mut data) = (None, None, None);
        while let Some(tag) = reader.tag()? {
            match tag {
                RECORD_KEY => key = Some(low_half(reader.varint()?)),
                RECORD_HASH_KEY => hash_key = Some(low_half(reader.varint()?)),
                RECORD_DATA => data = Some(Span32::of(&reader.bytes()?)?),
                RECORD_TAGS => {
                    let span = reader.bytes()?;
                    *mark = mark.or(read_tag(reader.nested(span), buffer)?);
                }
                _ => reader.skip(tag)?,
            }
        }
        let (key, data) = (key.ok_or(MalformedMessage)?, data.ok_or(MalformedMessage)?);
        Ok(Self { key, hash_key, data })
    }

    /// Returns the hash of the user record, or `None` if its explicit hash key is outside the hash
    /// key space.
    fn place(
        &self,
        places: &[HashKey],
        hash_keys: &[Span32],
        data: &[u8],
    ) -> Result<Option<HashKey>, UnreadableRecord> {
        // KCL resolves the partition key first, even if the hash key decides.
        let of_key = places.get(self.key as usize).ok_or(UnreadableRecord::NoSuchKey)?;
        let Some(index) = self.hash_key else { return Ok(Some(*of_key)) };
        let text = hash_keys.get(index as usize).ok_or(UnreadableRecord::NoSuchHashKey)?;
        match HashKeyText::read(text.of_bytes(data)) {
            HashKeyText::HashKey(place) => Ok(Some(place)),
            HashKeyText::OutsideTheSpace => Ok(None),
            HashKeyText::NotANumber => Err(UnreadableRecord::NotANumber),
        }
    }
}

/// Reads a tag of a user record. Returns the deduplication tag if it is one. A tag without a key is
/// malformed.
fn read_tag(
    mut reader: MessageReader<'_>,
    buffer: &[u8],
) -> Result<Option<DedupTag>, MalformedMessage> {
    let (mut key, mut value) = (None, None);
    while let Some(tag) = reader.tag()? {
        match tag {
            TAG_KEY => key = Some(reader.bytes()?),
            TAG_VALUE => value = Some(reader.bytes()?),
            _ => reader.skip(tag)?,
        }
    }
    let key = key.ok_or(MalformedMessage)?;
    Ok(value.and_then(|value| DedupTag::read(&buffer[key], &buffer[value])))
}

#[expect(clippy::cast_possible_truncation, reason = "KCL keeps the low half too")]
fn low_half(index: u64) -> u32 {
    index as u32
}

/// An explicit hash key of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HashKeyText {
    HashKey(HashKey),
    /// Below 0 or above 2^128 − 1.
    OutsideTheSpace,
    NotANumber,
}

impl HashKeyText {
    /// Parses the syntax of Java's `BigInteger`: an optional sign, then digits. Java also accepts
    /// digits of other scripts; these are rejected here, because no producer writes them.
    fn read(text: &[u8]) -> Self {
        let (negative, digits) = match text {
            [b'-', digits @ ..] => (true, digits),
            [b'+', digits @ ..] | digits => (false, digits),
        };
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return Self::NotANumber;
        }
        // Eighteen digits at a time, because a wide multiplication per digit is slower.
        let value = digits.chunks(18).try_fold(0_u128, |value, chunk| {
            let (scale, part) = chunk.iter().fold((1_u64, 0_u64), |(scale, part), digit| {
                (scale * 10, part * 10 + u64::from(digit - b'0'))
            });
            value.checked_mul(u128::from(scale))?.checked_add(u128::from(part))
        });
        match value {
            Some(value) if !negative || value == 0 => Self::HashKey(HashKey(value)),
            _ => Self::OutsideTheSpace,
        }
    }
}

/// The user records of an aggregate, in order. Each is created on demand; its key and data are
/// slices of the aggregate.
#[derive(Debug, Clone)]
pub struct UserRecords {
    /// Kinesis record that carried them.
    carrier: Record,
    /// Table of partition keys, as spans of the carrier's data.
    keys: Vec<KeySpan>,
    /// Table of explicit hash keys, as spans of the carrier's data.
    hash_keys: Vec<Span32>,
    /// Remaining user records, with their indices.
    records: std::iter::Enumerate<std::vec::IntoIter<RawRecord>>,
    /// Deduplication tag of the producer.
    mark: Option<DedupTag>,
}

impl UserRecords {
    /// Returns the deduplication tag of the aggregate, if its producer added one.
    pub fn dedup_tag(&self) -> Option<DedupTag> {
        self.mark
    }
}

impl Iterator for UserRecords {
    type Item = UserRecord;

    #[inline]
    fn next(&mut self) -> Option<UserRecord> {
        let (sub, raw) = self.records.next()?;
        let data = &self.carrier.data;
        let explicit_hash_key = raw.hash_key.and_then(|index| {
            match HashKeyText::read(self.hash_keys[index as usize].of_bytes(data)) {
                HashKeyText::HashKey(hash_key) => Some(hash_key),
                HashKeyText::OutsideTheSpace | HashKeyText::NotANumber => None,
            }
        });
        Some(UserRecord {
            sequence: self.carrier.sequence,
            sub: sub as u64,
            aggregated: true,
            partition_key: self.keys[raw.key as usize].key(data),
            explicit_hash_key,
            data: raw.data.slice(data),
            arrival_ms: self.carrier.arrival_ms,
        })
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.records.size_hint()
    }
}

impl ExactSizeIterator for UserRecords {}

/// Compares the remaining user records.
impl PartialEq for UserRecords {
    fn eq(&self, other: &Self) -> bool {
        self.clone().eq(other.clone())
    }
}

impl Eq for UserRecords {}

#[cfg(test)]
mod tests;
