//! A run of a shard's records in one buffer. A full segment never changes, and readers share it.

use std::ops::Range;

use crate::shard_log::LogRecord;

/// Size in bytes at which a segment is sealed and the next one begins.
pub(crate) const SEGMENT_BYTES: usize = 256 * 1024;

/// The location of one record in its segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordSlot {
    /// Offset of the partition key in the segment's bytes. The data follows it.
    offset: u32,
    /// Bytes of data.
    data_len: u32,
    /// Milliseconds from the segment's first arrival to this record's.
    arrival_delta: u32,
    /// Bytes of partition key.
    key_len: u16,
    /// True if the key contains characters that JSON escapes. Computed once and used by every
    /// reply.
    key_escapes: bool,
}

impl RecordSlot {
    /// Returns the bytes of key and data.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.data_len as usize + usize::from(self.key_len)
    }

    /// Returns true if the key contains characters that JSON escapes.
    pub(crate) fn key_escapes(&self) -> bool {
        self.key_escapes
    }
}

/// A run of records with consecutive counters.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    /// The counter of the first record.
    first_counter: u64,
    /// Arrival time of the first record, in milliseconds since 1970.
    first_arrival_ms: u64,
    /// Keys and payloads, one after another.
    bytes: Vec<u8>,
    /// One slot for each record.
    slots: Vec<RecordSlot>,
}

impl Segment {
    /// Creates an empty segment with capacity for this many bytes and records.
    pub(crate) fn begin(
        first_counter: u64,
        first_arrival_ms: u64,
        bytes: usize,
        slots: usize,
    ) -> Self {
        Self {
            first_counter,
            first_arrival_ms,
            bytes: Vec::with_capacity(bytes),
            slots: Vec::with_capacity(slots),
        }
    }

    pub(crate) fn first_counter(&self) -> u64 {
        self.first_counter
    }

    pub(crate) fn end_counter(&self) -> u64 {
        self.first_counter + self.slots.len() as u64
    }

    pub(crate) fn slots(&self) -> &[RecordSlot] {
        &self.slots
    }

    /// Returns the keys and payloads, one after another.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    #[inline]
    pub(crate) fn arrival_ms(&self, slot: &RecordSlot) -> u64 {
        self.first_arrival_ms + u64::from(slot.arrival_delta)
    }

    pub(crate) fn last_arrival_ms(&self) -> u64 {
        self.slots.last().map_or(self.first_arrival_ms, |slot| self.arrival_ms(slot))
    }

    /// Returns the key and the data of a record.
    #[inline]
    pub(crate) fn key_and_data(&self, slot: &RecordSlot) -> (&[u8], &[u8]) {
        let start = slot.offset as usize;
        self.bytes[start..start + slot.size()].split_at(usize::from(slot.key_len))
    }

    /// Returns the slot for `record`, or `None` if the segment cannot hold it.
    pub(crate) fn slot_for(&self, record: &LogRecord<'_>, arrival_ms: u64) -> Option<RecordSlot> {
        let size = record.partition_key.len() + record.data.len();
        if !self.slots.is_empty() && self.bytes.len() + size > SEGMENT_BYTES {
            return None;
        }
        Some(RecordSlot {
            offset: u32::try_from(self.bytes.len()).ok()?,
            data_len: u32::try_from(record.data.len()).ok()?,
            arrival_delta: u32::try_from(arrival_ms - self.first_arrival_ms).ok()?,
            key_len: u16::try_from(record.partition_key.len()).ok()?,
            key_escapes: crate::wire::json::escapes(record.partition_key.as_bytes()),
        })
    }

    pub(crate) fn push(&mut self, record: &LogRecord<'_>, slot: RecordSlot) {
        self.bytes.extend_from_slice(record.partition_key.as_bytes());
        self.bytes.extend_from_slice(record.data);
        self.slots.push(slot);
    }

    /// Releases unused capacity.
    pub(crate) fn seal(&mut self) {
        self.bytes.shrink_to_fit();
        self.slots.shrink_to_fit();
    }

    /// Returns some of the records as a new segment, with one copy of their bytes.
    pub(crate) fn part(&self, run: Range<usize>) -> Self {
        let slots = &self.slots[run.clone()];
        let start = slots.first().map_or(0, |first| first.offset);
        let end = slots.last().map_or(0, |last| last.offset as usize + last.size());
        let moved = |slot: &RecordSlot| RecordSlot { offset: slot.offset - start, ..*slot };
        Self {
            first_counter: self.first_counter + run.start as u64,
            first_arrival_ms: self.first_arrival_ms,
            bytes: self.bytes[start as usize..end].to_vec(),
            slots: slots.iter().map(moved).collect(),
        }
    }

    /// Returns the bytes of memory allocated by the segment, including unused capacity.
    pub(crate) fn allocated_bytes(&self) -> usize {
        let slots = self.slots.capacity() * size_of::<RecordSlot>();
        size_of::<Self>() + self.bytes.capacity() + slots
    }
}
