//! The records of one shard, in order, stored compactly.
//!
//! A record takes its bytes and one index entry. Its sequence number is not stored: the counter
//! follows from the record's position, and the rest is common to the shard.

use crate::memory::RecordMemory;
use crate::record_batch::RecordBatch;
use crate::segment::{RecordSlot, SEGMENT_BYTES, Segment};
use std::collections::VecDeque;
use std::sync::Arc;

/// Initial size of the first segment, in bytes. Keeps a stream of many idle shards small.
const FIRST_BYTES: usize = 1024;

/// The counter of a shard's starting sequence number. The first record has the next one.
pub(crate) const STARTING_COUNTER: u64 = 0;
/// The counter of a closed shard's ending sequence number, above that of any record.
pub(crate) const ENDING_COUNTER: u64 = i64::MAX as u64;

/// A record that is about to be stored.
#[derive(Debug, Clone, Copy)]
pub struct LogRecord<'a> {
    /// The partition key.
    pub partition_key: &'a str,
    /// The payload.
    pub data: &'a [u8],
}

/// Limits of one read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadLimit {
    pub(crate) records: usize,
    pub(crate) bytes: usize,
}

/// The records of one shard.
#[derive(Debug)]
pub(crate) struct ShardLog {
    /// Sealed segments, and at the back the growing one.
    segments: VecDeque<Arc<Segment>>,
    /// The counter of the next record.
    next_counter: u64,
    /// Arrival time of the last record, in milliseconds since 1970. Never decreases.
    last_arrival_ms: u64,
    /// Counts the memory of the segments, together with that of other shards.
    memory: Arc<RecordMemory>,
}

impl ShardLog {
    pub(crate) fn new(born_ms: u64, memory: Arc<RecordMemory>) -> Self {
        Self {
            segments: VecDeque::new(),
            next_counter: STARTING_COUNTER + 1,
            last_arrival_ms: born_ms,
            memory,
        }
    }

    pub(crate) fn next_counter(&self) -> u64 {
        self.next_counter
    }

    /// Returns the arrival time of a record that is stored at `now_ms`.
    pub(crate) fn arrival_at(&self, now_ms: u64) -> u64 {
        now_ms.max(self.last_arrival_ms)
    }

    /// Stores one record and returns its counter. `arrival_ms` comes from [`ShardLog::arrival_at`].
    pub(crate) fn append(&mut self, record: &LogRecord<'_>, arrival_ms: u64) -> u64 {
        let arrival_ms = self.arrival_at(arrival_ms);
        let counter = self.next_counter;
        let fits = self.segments.back().and_then(|segment| {
            let in_line = segment.end_counter() == counter;
            in_line.then(|| segment.slot_for(record, arrival_ms)).flatten()
        });
        let slot = fits.unwrap_or_else(|| {
            self.begin_segment(arrival_ms, record.partition_key.len() + record.data.len());
            let back = self.segments.back().expect("a segment was just begun");
            back.slot_for(record, arrival_ms).expect("an empty segment takes any valid record")
        });
        let back = self.segments.back_mut().expect("the slot lies in it");
        let before = back.allocated_bytes();
        // The growing segment is not shared, so this never copies it.
        Arc::make_mut(back).push(record, slot);
        self.memory.resized(before, back.allocated_bytes());
        self.next_counter = counter + 1;
        self.last_arrival_ms = arrival_ms;
        counter
    }

    fn begin_segment(&mut self, first_arrival_ms: u64, first_size: usize) {
        // A shard that filled a segment will likely fill the next one. An idle shard stays small.
        let (room, slots) = match self.segments.back_mut() {
            None => (FIRST_BYTES, 0),
            Some(back) => {
                let before = back.allocated_bytes();
                Arc::make_mut(back).seal();
                self.memory.resized(before, back.allocated_bytes());
                (SEGMENT_BYTES, back.slots().len())
            }
        };
        let bytes = room.max(first_size);
        let segment = Segment::begin(self.next_counter, first_arrival_ms, bytes, slots);
        self.memory.resized(0, segment.allocated_bytes());
        self.segments.push_back(Arc::new(segment));
    }

    /// Raises the next counter to at least `counter`, which leaves a gap. Prevents reuse of numbers
    /// that a reader may have seen before a crash.
    pub(crate) fn skip_to(&mut self, counter: u64) {
        self.next_counter = self.next_counter.max(counter);
    }

    /// Returns the counter of the first record that arrived at `ms` or later, or the next counter
    /// if none did.
    pub(crate) fn counter_at_time(&self, ms: u64) -> u64 {
        let at = self.segments.partition_point(|segment| segment.last_arrival_ms() < ms);
        let Some(segment) = self.segments.get(at) else { return self.next_counter };
        let slot = segment.slots().partition_point(|slot| segment.arrival_ms(slot) < ms);
        segment.first_counter() + slot as u64
    }

    /// Drops the segments whose records all arrived before `horizon_ms`.
    pub(crate) fn trim(&mut self, horizon_ms: u64) {
        while self.segments.front().is_some_and(|front| front.last_arrival_ms() < horizon_ms) {
            self.drop_front();
        }
    }

    fn drop_front(&mut self) {
        if let Some(front) = self.segments.pop_front() {
            self.memory.resized(front.allocated_bytes(), 0);
        }
    }

    /// Returns the records from `counter` on that arrived at `horizon_ms` or later. Shares sealed
    /// segments and copies records of the growing one.
    pub(crate) fn read(&self, counter: u64, horizon_ms: u64, take: ReadLimit) -> RecordBatch {
        let counter = counter.max(self.counter_at_time(horizon_ms));
        let first = self.segments.partition_point(|segment| segment.end_counter() <= counter);
        let mut batch = RecordBatch::default();
        let mut left = take;
        // After the last record there may be a gap, which a reader must skip to reach the end.
        batch.next_counter = self.next_counter.max(counter);
        for (at, segment) in self.segments.iter().enumerate().skip(first) {
            let slots = segment.slots();
            let from = counter.saturating_sub(segment.first_counter());
            let from = usize::try_from(from).unwrap_or(usize::MAX).min(slots.len());
            let until = from + fitting(&slots[from..], &mut left, !batch.is_empty());
            if at + 1 < self.segments.len() {
                batch.push(Arc::clone(segment), from..until);
            } else {
                batch.push(Arc::new(segment.part(from..until)), 0..until - from);
            }
            if until < slots.len() {
                batch.next_counter = segment.first_counter() + until as u64;
                break;
            }
        }
        batch
    }

    /// Returns the number of records held, including those past retention that are not yet dropped.
    pub(crate) fn len(&self) -> usize {
        self.segments.iter().map(|segment| segment.slots().len()).sum()
    }

    /// Returns the bytes of memory allocated for records, including index and unused capacity.
    pub(crate) fn allocated_bytes(&self) -> usize {
        let list = self.segments.capacity() * size_of::<Arc<Segment>>();
        list + self.segments.iter().map(|segment| segment.allocated_bytes()).sum::<usize>()
    }
}

impl Drop for ShardLog {
    fn drop(&mut self) {
        while !self.segments.is_empty() {
            self.drop_front();
        }
    }
}

/// Returns how many of `slots` fit in `left`, and reduces it by them. The first record of a reply
/// always fits, so that a reader never gets stuck.
fn fitting(slots: &[RecordSlot], left: &mut ReadLimit, begun: bool) -> usize {
    let mut count = 0;
    for slot in slots {
        let size = slot.size();
        if left.records == 0 || (left.bytes < size && (begun || count > 0)) {
            // No later record may overtake one that does not fit.
            left.records = 0;
            break;
        }
        left.records -= 1;
        left.bytes = left.bytes.saturating_sub(size);
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: ReadLimit = ReadLimit { records: 10_000, bytes: 10 * 1024 * 1024 };

    fn append(log: &mut ShardLog, key: &str, size: usize, arrival_ms: u64) -> u64 {
        log.append(&LogRecord { partition_key: key, data: &vec![7; size] }, arrival_ms)
    }

    fn counters(batch: &RecordBatch) -> Vec<u64> {
        batch.iter().map(|record| record.sequence.limbs()[1]).collect()
    }

    #[test]
    fn a_record_costs_its_payload_and_at_most_64_bytes() {
        // A key as long as a UUID, and sizes below and above that of a segment.
        let key = "123e4567-e89b-12d3-a456-426614174000";
        for (count, size) in [(100_000, 100), (100_000, 0), (20_000, 1_000), (60, 300_000)] {
            let mut log = ShardLog::new(0, Arc::default());
            for i in 0..count {
                append(&mut log, key, size, i);
            }
            let count = usize::try_from(count).unwrap();
            let overhead = log.allocated_bytes() - count * size;
            // The growing segment has unused capacity. There is one per shard.
            let spare = 2 * SEGMENT_BYTES.max(size);
            assert!(overhead <= count * 64 + spare, "{} bytes a record", overhead / count);
        }
        let mut log = ShardLog::new(0, Arc::default());
        append(&mut log, key, 100, 0);
        assert!(log.allocated_bytes() < 4 * 1024, "a quiet shard stays small");
    }

    #[test]
    fn reads_go_on_where_they_stopped_whatever_the_limits() {
        let mut log = ShardLog::new(0, Arc::default());
        for i in 0..2_000_usize {
            append(&mut log, "k", i % 700, i as u64);
        }
        for (records, bytes) in [(1, 1), (7, 10_000), (300, 1_000), (10_000, 100_000)] {
            let (mut next, mut seen) = (0, Vec::new());
            loop {
                let batch = log.read(next, 0, ReadLimit { records, bytes });
                if batch.is_empty() {
                    break;
                }
                assert!(batch.len() <= records && (batch.len() == 1 || batch.bytes() <= bytes));
                seen.extend(counters(&batch));
                next = batch.next_counter;
            }
            assert_eq!(seen, (1..=2_000).collect::<Vec<_>>(), "{records} records, {bytes} bytes");
        }
    }

    #[test]
    fn what_was_read_stays_as_it_was_whatever_the_shard_does_next() {
        let mut log = ShardLog::new(0, Arc::default());
        for i in 0..60 {
            append(&mut log, &format!("before-{i}"), 10_000, i);
        }
        // From a sealed segment, across its end, and within the growing one.
        for counter in [3, 30, 59] {
            let batch = log.read(counter, 0, ALL);
            let seen =
                || batch.iter().map(|r| (r.sequence, r.partition_key.to_owned(), r.data.len()));
            let before: Vec<_> = seen().collect();
            assert_eq!(before.len() as u64, log.next_counter() - counter);
            assert_eq!(before[0].1, format!("before-{}", counter - 1));
            let mut later = 0;
            for i in 0..60 {
                later = append(&mut log, "after", 9_000, 60 + i);
            }
            assert_eq!(seen().collect::<Vec<_>>(), before);
            assert_eq!(log.read(later, 0, ALL).iter().next().unwrap().partition_key, "after");
        }
        let batch = log.read(0, 0, ALL);
        log.trim(u64::MAX);
        assert!(log.read(0, u64::MAX, ALL).is_empty());
        assert_eq!(batch.len() as u64, log.next_counter() - 1, "a reader keeps what it holds");
    }

    #[test]
    fn gaps_in_counters_are_read_over() {
        let mut log = ShardLog::new(0, Arc::default());
        append(&mut log, "a", 1, 5);
        log.skip_to(1_000);
        append(&mut log, "b", 1, 6);
        let batch = log.read(0, 0, ALL);
        assert_eq!((counters(&batch), batch.next_counter), (vec![1, 1_000], 1_001));
        assert_eq!(counters(&log.read(2, 0, ALL)), [1_000]);
        assert_eq!(counters(&log.read(1_000, 0, ALL)), [1_000]);
        log.skip_to(5_000);
        let batch = log.read(1_001, 0, ALL);
        assert!(batch.is_empty() && batch.next_counter <= 5_000);
        append(&mut log, "c", 1, 7);
        assert_eq!(counters(&log.read(batch.next_counter, 0, ALL)), [5_000]);
    }

    #[test]
    fn arrival_times_never_go_back() {
        let mut log = ShardLog::new(100, Arc::default());
        append(&mut log, "a", 1, 50);
        append(&mut log, "b", 1, 200);
        append(&mut log, "c", 1, 150);
        let arrivals: Vec<u64> = log.read(0, 0, ALL).iter().map(|r| r.arrival_ms).collect();
        assert_eq!(arrivals, [100, 200, 200]);
        for (at, counter) in [(0, 1), (100, 1), (101, 2), (200, 2), (201, 4)] {
            assert_eq!(log.counter_at_time(at), counter, "{at}");
        }
    }

    #[test]
    fn trimming_drops_whole_segments_and_reads_hide_the_rest() {
        let mut log = ShardLog::new(0, Arc::default());
        for i in 0..100 {
            append(&mut log, "k", 10_000, i);
        }
        let before = log.allocated_bytes();
        assert!(log.memory.used() <= before && log.memory.used() > 100 * 10_000);
        log.trim(60);
        assert!(log.allocated_bytes() < before / 2 + SEGMENT_BYTES);
        assert_eq!(counters(&log.read(0, 60, ALL))[0], 61);
        log.trim(1_000);
        assert!(log.read(0, 1_000, ALL).is_empty());
        assert_eq!(append(&mut log, "k", 1, 1_000), 101);
        let memory = Arc::clone(&log.memory);
        assert!(memory.used() > 0);
        drop(log);
        assert_eq!(memory.used(), 0, "a shard that is gone takes none");
    }
}
