//! Records copied out of a shard: one buffer, and where each record lies in it.

use crate::buffer;
use anabranch_model::record::{Key, Record};
use anabranch_model::sequence::SequenceNumber;

/// Records of one shard in order, in one buffer.
#[derive(Debug, Clone, Default)]
pub struct RecordBatch {
    /// Keys and payloads, one after another.
    pub(crate) bytes: Vec<u8>,
    /// Where each record lies.
    pub(crate) entries: Vec<BatchEntry>,
    /// The counter at which the next read goes on.
    pub(crate) next_counter: u64,
    /// The shard's part of every sequence number: the high and the low limb.
    pub(crate) stamp: Stamp,
}

impl Drop for RecordBatch {
    fn drop(&mut self) {
        buffer::give_back(std::mem::take(&mut self.bytes));
    }
}

/// What every sequence number of a shard shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stamp {
    /// The highest limb, from the shard's birth; a child's is above its parents'.
    pub(crate) high: u64,
    /// The lowest limb: the shard's index.
    pub(crate) low: u32,
}

impl Stamp {
    /// The sequence number with the given counter.
    pub(crate) fn number(self, counter: u64) -> SequenceNumber {
        SequenceNumber::from_limbs(self.high, counter, u64::from(self.low))
            .expect("births and counters have at most 19 digits")
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchEntry {
    pub(crate) counter: u64,
    pub(crate) arrival_ms: u64,
    pub(crate) offset: usize,
    pub(crate) key_len: usize,
    pub(crate) data_len: usize,
}

/// One record of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchRecord<'a> {
    /// The record's sequence number.
    pub sequence: SequenceNumber,
    /// When the record arrived, in milliseconds since 1970.
    pub arrival_ms: u64,
    /// The partition key.
    pub partition_key: &'a str,
    /// The payload.
    pub data: &'a [u8],
}

impl RecordBatch {
    /// How many records the batch holds.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the batch holds no record.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all keys and payloads.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The records in order, as slices of the batch's one buffer.
    #[expect(clippy::missing_panics_doc, reason = "keys were stored from text")]
    pub fn into_records(mut self) -> Vec<Record> {
        let bytes = buffer::share(std::mem::take(&mut self.bytes));
        let record = |entry: &BatchEntry| {
            let data = entry.offset + entry.key_len;
            let key = bytes.slice(entry.offset..data);
            Record {
                sequence: self.stamp.number(entry.counter),
                partition_key: Key::from_utf8(key).expect("a key is stored from text only"),
                data: bytes.slice(data..data + entry.data_len),
                arrival_ms: entry.arrival_ms,
            }
        };
        self.entries.iter().map(record).collect()
    }

    /// The records in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = BatchRecord<'_>> {
        self.entries.iter().map(|entry| {
            let (key, rest) = self.bytes[entry.offset..].split_at(entry.key_len);
            BatchRecord {
                sequence: self.stamp.number(entry.counter),
                arrival_ms: entry.arrival_ms,
                // Keys were stored from text, so this is never the empty default.
                partition_key: std::str::from_utf8(key).unwrap_or_default(),
                data: &rest[..entry.data_len],
            }
        })
    }
}
