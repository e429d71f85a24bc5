//! Records that were read from a shard. They are shared with the shard where that is possible.

use crate::segment::{RecordSlot, Segment};
use anabranch_model::record::{PartitionKey, Record};
use anabranch_model::sequence::SequenceNumber;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// Records of one shard in order.
#[derive(Debug, Clone, Default)]
pub struct RecordBatch {
    /// The records, as runs of consecutive counters.
    runs: Vec<SegmentRun>,
    /// How many records there are.
    records: usize,
    /// Bytes of all keys and payloads.
    bytes: usize,
    /// The counter at which the next read goes on.
    pub(crate) next_counter: u64,
    /// The shard's part of every sequence number: the high and the low limb.
    pub(crate) stamp: SequenceBase,
}

/// What every sequence number of a shard shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SequenceBase {
    /// The highest limb, from the shard's birth; a child's is above its parents'.
    pub(crate) high: u64,
    /// The lowest limb: the shard's index.
    pub(crate) low: u32,
}

impl SequenceBase {
    /// The sequence number with the given counter.
    pub(crate) fn number(self, counter: u64) -> SequenceNumber {
        SequenceNumber::from_limbs(self.high, counter, u64::from(self.low))
            .expect("births and counters have at most 19 digits")
    }
}

/// Records of one segment, one behind another.
#[derive(Debug, Clone)]
pub(crate) struct SegmentRun {
    /// Holds the records.
    segment: Arc<Segment>,
    /// Which of the segment's records.
    slots: Range<usize>,
}

/// A record as it is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredRecord<'a> {
    /// What makes the sequence number, with the shard's stamp.
    pub(crate) counter: u64,
    /// When the record arrived, in milliseconds since 1970.
    pub(crate) arrival_ms: u64,
    /// The partition key in UTF-8.
    pub(crate) key: &'a [u8],
    /// Whether the key has characters that JSON escapes.
    pub(crate) key_escapes: bool,
    /// The payload.
    pub(crate) data: &'a [u8],
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
    /// Adds records behind those that are there.
    pub(crate) fn push(&mut self, segment: Arc<Segment>, slots: Range<usize>) {
        if !slots.is_empty() {
            self.records += slots.len();
            self.bytes +=
                segment.slots()[slots.clone()].iter().map(RecordSlot::size).sum::<usize>();
            self.runs.push(SegmentRun { segment, slots });
        }
    }

    /// How many records the batch holds.
    pub fn len(&self) -> usize {
        self.records
    }

    /// Whether the batch holds no record.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Bytes of all keys and payloads.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// When the last record arrived.
    pub(crate) fn last_arrival_ms(&self) -> Option<u64> {
        let SegmentRun { segment, slots } = self.runs.last()?;
        segment.slots()[slots.clone()].last().map(|slot| segment.arrival_ms(slot))
    }

    /// The records in order, as slices of the shard's own memory.
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

    /// The records in order.
    pub fn iter(&self) -> impl Iterator<Item = BatchRecord<'_>> {
        self.runs.iter().flat_map(SegmentRun::stored).map(|record| BatchRecord {
            sequence: self.stamp.number(record.counter),
            arrival_ms: record.arrival_ms,
            // Keys were stored from text, so this is never the empty default.
            partition_key: std::str::from_utf8(record.key).unwrap_or_default(),
            data: record.data,
        })
    }

    /// The records in order, as runs.
    pub(crate) fn runs(&self) -> &[SegmentRun] {
        &self.runs
    }
}

impl SegmentRun {
    /// The records in order, as they are stored: nothing is checked, nothing is made.
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

/// A segment that lives as long as somebody holds a part of its bytes.
struct SegmentBytes(Arc<Segment>);

impl AsRef<[u8]> for SegmentBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}
