//! Records read from a shard. They share the shard's memory where possible.

use crate::segment::{RecordSlot, Segment};
use anabranch_model::record::{PartitionKey, Record};
use anabranch_model::sequence::SequenceNumber;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// Records of one shard, in order.
#[derive(Debug, Clone, Default)]
pub struct RecordBatch {
    /// The records, as runs of consecutive counters.
    runs: Vec<SegmentRun>,
    /// Number of records.
    records: usize,
    /// Bytes of all keys and payloads.
    bytes: usize,
    /// The counter at which the next read continues.
    pub(crate) next_counter: u64,
    /// The shard's part of every sequence number: the high and the low limb.
    pub(crate) stamp: SequenceBase,
}

/// The part common to all sequence numbers of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SequenceBase {
    /// The highest limb, from the shard's opening time. A child's is above its parents'.
    pub(crate) high: u64,
    /// The lowest limb: the shard's index.
    pub(crate) low: u32,
}

impl SequenceBase {
    /// Returns the sequence number with the given counter.
    pub(crate) fn number(self, counter: u64) -> SequenceNumber {
        SequenceNumber::from_limbs(self.high, counter, u64::from(self.low))
            .expect("births and counters have at most 19 digits")
    }
}

/// Consecutive records of one segment.
#[derive(Debug, Clone)]
pub(crate) struct SegmentRun {
    segment: Arc<Segment>,
    /// The range of slots in the segment.
    slots: Range<usize>,
}

/// A record as it is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredRecord<'a> {
    /// The middle limb of the sequence number.
    pub(crate) counter: u64,
    /// Arrival time, in milliseconds since 1970.
    pub(crate) arrival_ms: u64,
    /// The partition key in UTF-8.
    pub(crate) key: &'a [u8],
    /// True if the key contains characters that JSON escapes.
    pub(crate) key_escapes: bool,
    pub(crate) data: &'a [u8],
}

/// One record of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchRecord<'a> {
    /// The record's sequence number.
    pub sequence: SequenceNumber,
    /// Arrival time, in milliseconds since 1970.
    pub arrival_ms: u64,
    /// The partition key.
    pub partition_key: &'a str,
    /// The payload.
    pub data: &'a [u8],
}

impl RecordBatch {
    /// Appends the records in `slots` of a segment.
    pub(crate) fn push(&mut self, segment: Arc<Segment>, slots: Range<usize>) {
        if !slots.is_empty() {
            self.records += slots.len();
            self.bytes +=
                segment.slots()[slots.clone()].iter().map(RecordSlot::size).sum::<usize>();
            self.runs.push(SegmentRun { segment, slots });
        }
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.records
    }

    /// Returns true if the batch holds no records.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Returns the bytes of all keys and payloads.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the arrival time of the last record.
    pub(crate) fn last_arrival_ms(&self) -> Option<u64> {
        let SegmentRun { segment, slots } = self.runs.last()?;
        segment.slots()[slots.clone()].last().map(|slot| segment.arrival_ms(slot))
    }

    /// Converts the batch to records in order. Their keys and data are slices of the segments, not
    /// copies.
    #[expect(clippy::missing_panics_doc, reason = "keys were stored from text")]
    pub fn into_records(self) -> Vec<Record> {
        let mut records = Vec::with_capacity(self.records);
        for run in &self.runs {
            let bytes = Bytes::from_owner(SegmentBytes(Arc::clone(&run.segment)));
            records.extend(run.stored().map(|record| {
                Record {
                    sequence: self.stamp.number(record.counter),
                    partition_key: PartitionKey::from_utf8(bytes.slice_ref(record.key))
                        .expect("a key is stored from text only"),
                    data: bytes.slice_ref(record.data),
                    arrival_ms: record.arrival_ms,
                }
            }));
        }
        records
    }

    /// Iterates over the records in order.
    pub fn iter(&self) -> impl Iterator<Item = BatchRecord<'_>> {
        self.runs.iter().flat_map(SegmentRun::stored).map(|record| BatchRecord {
            sequence: self.stamp.number(record.counter),
            arrival_ms: record.arrival_ms,
            // Keys were stored from text, so the default is never used.
            partition_key: std::str::from_utf8(record.key).unwrap_or_default(),
            data: record.data,
        })
    }

    /// Returns the records in order, as runs.
    pub(crate) fn runs(&self) -> &[SegmentRun] {
        &self.runs
    }
}

impl SegmentRun {
    /// Iterates over the records in order, in their stored form. Checks and allocates nothing.
    pub(crate) fn stored(&self) -> impl Iterator<Item = StoredRecord<'_>> {
        let Self { segment, slots } = self;
        let counters = segment.first_counter() + slots.start as u64..;
        segment.slots()[slots.clone()].iter().zip(counters).map(|(slot, counter)| {
            let (key, data) = segment.key_and_data(slot);
            let (arrival_ms, key_escapes) = (segment.arrival_ms(slot), slot.key_escapes());
            StoredRecord { counter, arrival_ms, key, key_escapes, data }
        })
    }
}

/// Keeps a segment alive while part of its bytes is in use.
struct SegmentBytes(Arc<Segment>);

impl AsRef<[u8]> for SegmentBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}
