//! The queue of one shard, or of one hash, in put order.

use super::carried_records::CarriedRecords;
use super::paged_queue::{PagedQueue, QueuedRecord, SparePages};
use super::pending::{OfferedRecord, PendingRecord};
use super::seal::SealedRecord;
use crate::hash::{HashKey, HashRange};
use crate::ids::ShardId;
use std::collections::VecDeque;

/// Scope of a queue: the records it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum QueueScope {
    /// Records of a shard, which takes these hashes.
    Shard(ShardId, HashRange),
    /// Records of a single hash.
    Hash(HashKey),
}

impl QueueScope {
    /// Returns the hashes whose records the queue may hold.
    pub(super) fn range(&self) -> HashRange {
        match self {
            Self::Shard(_, range) => *range,
            Self::Hash(hash) => HashRange::new(*hash, *hash).expect("a hash is not above itself"),
        }
    }
}

/// Records of one shard or hash, in put order.
#[derive(Debug)]
pub(super) struct ShardQueue<T> {
    pub(super) place: QueueScope,
    /// Requeued records that are not sealed, in put order; all are older than those in `written`. A
    /// single-hash queue holds all of its unsealed records here.
    pub(super) queue: VecDeque<PendingRecord<T>>,
    /// Newer unsealed records, in put order.
    pub(super) written: PagedQueue<T>,
    /// Maximum size of `queue` and `written` in aggregates, in bytes.
    pub(super) queue_bytes: usize,
    /// Sealed records to send, or to send again. In strict order there is at most one, and none
    /// while one is in flight.
    pub(super) sealed: VecDeque<SealedRecord<T>>,
    /// Number of Kinesis records in flight or unverified.
    pub(super) in_flight: usize,
    /// Number of Kinesis records of removed queues that must complete before this queue may send.
    pub(super) blockers: usize,
    /// Failures since the last success.
    pub(super) failures: u32,
    /// Nothing is sent before this time.
    pub(super) not_before_ms: u64,
    /// True if the queue is in the ready line or waits for its shard's rate.
    pub(super) in_line: bool,
    /// Earliest timer set for the queue.
    pub(super) armed_ms: Option<u64>,
    /// Bytes of its shard's rate that are reserved for its next Kinesis record.
    pub(super) reserved: Option<u64>,
}

impl<T> ShardQueue<T> {
    pub(super) fn new(place: QueueScope, blockers: usize) -> Self {
        Self {
            place,
            queue: VecDeque::new(),
            written: PagedQueue::default(),
            queue_bytes: 0,
            sealed: VecDeque::new(),
            in_flight: 0,
            blockers,
            failures: 0,
            not_before_ms: 0,
            in_line: false,
            armed_ms: None,
            reserved: None,
        }
    }

    /// Returns true if the queue is empty, has nothing in flight and is not in line.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight == 0 && !self.in_line && self.has_nothing()
    }

    /// Returns true if there is nothing to send.
    pub(super) fn has_nothing(&self) -> bool {
        self.sealed.is_empty() && self.is_empty()
    }

    /// Returns true if all records are sealed.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.written.is_empty()
    }

    /// Returns the put number and the put time of the oldest unsealed record.
    #[inline]
    pub(super) fn first(&self) -> Option<(u64, u64)> {
        match self.queue.front() {
            Some(first) => Some((first.number, first.put_ms)),
            None => self.written.first().map(|first| (first.number, first.put_ms)),
        }
    }

    /// Appends the newest record.
    #[inline]
    pub(super) fn push(
        &mut self,
        offer: &OfferedRecord<'_>,
        number: u64,
        put_ms: u64,
        ticket: T,
        pages: &mut SparePages,
    ) {
        self.queue_bytes += offer.framed_bytes();
        match self.place {
            QueueScope::Shard(..) => self.written.push(offer, number, put_ms, ticket, pages),
            // There may be many such queues, each with a single record that is sent as it is.
            QueueScope::Hash(_) => self.queue.push_back(offer.pending(number, put_ms, ticket)),
        }
    }

    /// Takes the oldest unsealed record.
    pub(super) fn pop(&mut self, pages: &mut SparePages) -> Option<PendingRecord<T>> {
        let record = self.queue.pop_front().or_else(|| self.written.pop(pages))?;
        self.queue_bytes -= record.framed_bytes();
        Some(record)
    }

    /// Takes the `count` oldest unsealed records. `memory` returns an empty vector, for the result
    /// or for later records.
    pub(super) fn take_first(
        &mut self,
        count: usize,
        memory: impl FnOnce() -> Vec<QueuedRecord<T>>,
        pages: &mut SparePages,
    ) -> CarriedRecords<T> {
        if count == 1 {
            return CarriedRecords::Unpacked(self.pop(pages).into_iter().collect());
        }
        let records = if self.queue.is_empty() {
            CarriedRecords::Queued(self.written.take_first(count, memory(), pages))
        } else {
            let put_back = count.min(self.queue.len());
            let mut records: Vec<_> = self.queue.drain(..put_back).collect();
            let newer = std::iter::from_fn(|| self.written.pop(pages));
            records.extend(newer.take(count - put_back));
            CarriedRecords::Unpacked(records)
        };
        self.queue_bytes -= match &records {
            CarriedRecords::Unpacked(records) => {
                records.iter().map(PendingRecord::framed_bytes).sum::<usize>()
            }
            CarriedRecords::Queued(records) => records.iter().map(QueuedRecord::framed_bytes).sum(),
        };
        records
    }

    /// Puts records back in put order. `older` is sorted by put number.
    pub(super) fn merge(&mut self, older: Vec<PendingRecord<T>>, pages: &mut SparePages) {
        let Some(last) = older.last().map(|last| last.number) else { return };
        self.queue_bytes += older.iter().map(PendingRecord::framed_bytes).sum::<usize>();
        if self.written.first().is_some_and(|first| first.number < last) {
            self.unwrite(pages);
        }
        if self.queue.front().is_none_or(|front| last < front.number) {
            for record in older.into_iter().rev() {
                self.queue.push_front(record);
            }
        } else {
            let mut all: Vec<_> = std::mem::take(&mut self.queue).into();
            all.extend(older);
            all.sort_by_key(|record| record.number);
            self.queue = all.into();
        }
    }

    /// Moves all paged records into `queue`.
    fn unwrite(&mut self, pages: &mut SparePages) {
        let written = std::iter::from_fn(|| self.written.pop(pages));
        self.queue.extend(written);
    }

    /// Takes every unsealed record.
    pub(super) fn drain(&mut self, pages: &mut SparePages) -> VecDeque<PendingRecord<T>> {
        self.unwrite(pages);
        self.queue_bytes = 0;
        std::mem::take(&mut self.queue)
    }

    /// Removes the unsealed records that match `leave`, and returns them.
    pub(super) fn sweep(
        &mut self,
        mut leave: impl FnMut(&PendingRecord<T>) -> bool,
        pages: &mut SparePages,
    ) -> Vec<PendingRecord<T>> {
        let (out, stay): (Vec<_>, Vec<_>) = self.drain(pages).into_iter().partition(|r| leave(r));
        self.queue_bytes = stay.iter().map(PendingRecord::framed_bytes).sum();
        self.queue = stay.into();
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::produce::{AcceptedRecord, RecordContent};
    use bytes::Bytes;

    fn record(number: u64) -> PendingRecord<()> {
        let put = AcceptedRecord {
            key: format!("k{number}").into(),
            hash: HashKey(0),
            is_explicit: number.is_multiple_of(3),
            data: Bytes::from(vec![7; usize::try_from(number).unwrap() * 10]),
            ticket: (),
        };
        PendingRecord { number, put_ms: 0, put, maybe_landed: false, alone: false, past: None }
    }

    fn push(lane: &mut ShardQueue<()>, number: u64) {
        let put = record(number).put;
        let AcceptedRecord { key, hash, is_explicit, data, .. } = &put;
        let content = RecordContent::Shared { key, data };
        let offer = OfferedRecord { content, hash: *hash, is_explicit: *is_explicit };
        lane.push(&offer, number, 0, (), &mut SparePages::new());
    }

    /// Checks the records in the queue and its byte count.
    fn check(lane: &ShardQueue<()>, numbers: &[u64]) {
        let standing = lane.queue.iter().map(|record| record.number);
        let standing: Vec<u64> = standing.chain(lane.written.numbers()).collect();
        assert_eq!(standing, numbers);
        let bytes: usize = numbers.iter().map(|number| record(*number).framed_bytes()).sum();
        assert_eq!(lane.queue_bytes, bytes, "{numbers:?}");
        assert_eq!(lane.first(), numbers.first().map(|number| (*number, 0)));
    }

    fn shard() -> QueueScope {
        QueueScope::Shard(ShardId::from_index(0), HashRange::ALL)
    }

    #[test]
    fn the_bytes_of_a_lane_are_those_of_the_records_that_stand_in_it() {
        for place in [QueueScope::Hash(HashKey(0)), shard()] {
            let pages = &mut SparePages::new();
            let mut lane = ShardQueue::new(place, 0);
            for number in 0..8 {
                push(&mut lane, number);
            }
            check(&lane, &[0, 1, 2, 3, 4, 5, 6, 7]);
            let mut cut = vec![lane.pop(pages).unwrap(), lane.pop(pages).unwrap()];
            cut.extend(lane.pop(pages));
            check(&lane, &[3, 4, 5, 6, 7]);
            assert_eq!(lane.sweep(|record| record.number == 5, pages).len(), 1);
            check(&lane, &[3, 4, 6, 7]);
            lane.merge(cut, pages);
            check(&lane, &[0, 1, 2, 3, 4, 6, 7]);
            lane.merge(vec![record(5)], pages);
            check(&lane, &[0, 1, 2, 3, 4, 5, 6, 7]);
            assert_eq!(lane.drain(pages).len(), 8);
            check(&lane, &[]);
            lane.merge(vec![record(9)], pages);
            check(&lane, &[9]);
            push(&mut lane, 10);
            push(&mut lane, 11);
            check(&lane, &[9, 10, 11]);
            assert_eq!(lane.pop(pages).unwrap().number, 9);
            let both = lane.take_first(2, Vec::new, pages);
            assert_eq!((both.number(0), both.number(1)), (10, 11));
            check(&lane, &[]);
        }
    }

    #[test]
    fn records_that_are_put_back_stand_before_and_among_those_that_are_written() {
        let pages = &mut SparePages::new();
        let mut lane = ShardQueue::new(shard(), 0);
        for number in [2, 4, 6] {
            push(&mut lane, number);
        }
        lane.merge(vec![record(0), record(1)], pages);
        assert_eq!(lane.queue.len(), 2, "the written ones need not be touched");
        check(&lane, &[0, 1, 2, 4, 6]);
        lane.merge(vec![record(3), record(5)], pages);
        check(&lane, &[0, 1, 2, 3, 4, 5, 6]);
        push(&mut lane, 7);
        push(&mut lane, 8);
        assert_eq!((lane.queue.len(), lane.written.len()), (7, 2));
        check(&lane, &[0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let taken = lane.take_first(8, Vec::new, pages);
        let numbers: Vec<u64> = (0..taken.len()).map(|at| taken.number(at)).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7]);
        check(&lane, &[8]);
    }
}
