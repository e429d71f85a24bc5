//! A lane: the records of one shard, or of one hash, in put order.

use super::Pending;
use super::container::Frozen;
use crate::hash::{HashKey, HashRange};
use crate::ids::ShardId;
use std::collections::VecDeque;

/// Whose records a lane holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// Those of a shard, which takes these hashes.
    Shard(ShardId, HashRange),
    /// Those of a hash.
    Hash(HashKey),
}

impl Place {
    /// The hashes whose records the lane may hold.
    pub(super) fn range(&self) -> HashRange {
        match self {
            Self::Shard(_, range) => *range,
            Self::Hash(hash) => HashRange::new(*hash, *hash).expect("a hash is not above itself"),
        }
    }
}

/// The records of one shard or hash.
#[derive(Debug)]
pub(super) struct Lane<T> {
    /// Whose records these are.
    pub(super) place: Place,
    /// Records that are in no container, in put order.
    pub(super) queue: VecDeque<Pending<T>>,
    /// What the queue would take in containers, at the most.
    pub(super) queue_bytes: usize,
    /// Containers that wait to be sent, or sent again. In strict order there is at most one, and
    /// none while one is on its way.
    pub(super) frozen: VecDeque<Frozen<T>>,
    /// Containers on their way or unjudged.
    pub(super) flights: usize,
    /// Containers of older lanes that have to be judged before this lane may send.
    pub(super) blockers: usize,
    /// Failures since the last success.
    pub(super) failures: u32,
    /// Nothing is sent before this time.
    pub(super) not_before_ms: u64,
    /// Whether the lane stands in line for sending.
    pub(super) in_line: bool,
    /// The earliest timer that is set for it.
    pub(super) armed_ms: Option<u64>,
    /// Bytes of its shard's rate that are set aside for its next container.
    pub(super) reserved: Option<u64>,
}

impl<T> Lane<T> {
    pub(super) fn new(place: Place, blockers: usize) -> Self {
        Self {
            place,
            queue: VecDeque::new(),
            queue_bytes: 0,
            frozen: VecDeque::new(),
            flights: 0,
            blockers,
            failures: 0,
            not_before_ms: 0,
            in_line: false,
            armed_ms: None,
            reserved: None,
        }
    }

    /// Whether it holds nothing, waits for nothing, and is referred to nowhere.
    pub(super) fn is_idle(&self) -> bool {
        self.flights == 0 && !self.in_line && self.has_nothing()
    }

    /// Whether it has nothing to send.
    pub(super) fn has_nothing(&self) -> bool {
        self.queue.is_empty() && self.frozen.is_empty()
    }

    /// Appends the newest record.
    pub(super) fn push(&mut self, record: Pending<T>) {
        self.queue_bytes += record.framed_bytes();
        self.queue.push_back(record);
    }

    /// Takes the oldest record that is in no container.
    pub(super) fn pop(&mut self) -> Option<Pending<T>> {
        let record = self.queue.pop_front()?;
        self.queue_bytes -= record.framed_bytes();
        Some(record)
    }

    /// Takes the oldest records that are in no container. `spare` is empty memory: for them, or for
    /// the records to come.
    pub(super) fn take_first(
        &mut self,
        count: usize,
        mut spare: Vec<Pending<T>>,
    ) -> Vec<Pending<T>> {
        if count == self.queue.len() {
            // The memory changes hands, and no record moves.
            self.queue_bytes = 0;
            return std::mem::replace(&mut self.queue, spare.into()).into();
        }
        let taken = self.queue.drain(..count);
        spare.extend(taken.inspect(|record| self.queue_bytes -= record.framed_bytes()));
        spare
    }

    /// Puts records back where they stood: `older` is in put order, and so is the queue after it.
    pub(super) fn merge(&mut self, older: Vec<Pending<T>>) {
        self.queue_bytes += older.iter().map(Pending::framed_bytes).sum::<usize>();
        let comes_first = match (older.last(), self.queue.front()) {
            (Some(last), Some(front)) => last.number < front.number,
            _ => true,
        };
        if comes_first {
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

    /// Takes every record that is in no container.
    pub(super) fn drain(&mut self) -> VecDeque<Pending<T>> {
        self.queue_bytes = 0;
        std::mem::take(&mut self.queue)
    }

    /// Takes the records for which `leave` holds out of the queue.
    pub(super) fn sweep(&mut self, mut leave: impl FnMut(&Pending<T>) -> bool) -> Vec<Pending<T>> {
        let (out, stay): (Vec<_>, Vec<_>) = self.drain().into_iter().partition(|r| leave(r));
        self.queue_bytes = stay.iter().map(Pending::framed_bytes).sum();
        self.queue = stay.into();
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::produce::Put;

    fn record(number: u64) -> Pending<()> {
        let put = Put {
            key: format!("k{number}").into(),
            hash: HashKey(0),
            is_explicit: number.is_multiple_of(3),
            data: vec![7; usize::try_from(number).unwrap() * 10].into(),
            ticket: (),
        };
        Pending { number, put_ms: 0, put, maybe_landed: false, alone: false, past: None }
    }

    /// What stands in the lane, and that its bytes are counted.
    fn check(lane: &Lane<()>, numbers: &[u64]) {
        let standing: Vec<u64> = lane.queue.iter().map(|record| record.number).collect();
        assert_eq!(standing, numbers);
        let bytes: usize = lane.queue.iter().map(Pending::framed_bytes).sum();
        assert_eq!(lane.queue_bytes, bytes, "{numbers:?}");
    }

    #[test]
    fn the_bytes_of_a_lane_are_those_of_the_records_that_stand_in_it() {
        let mut lane = Lane::new(Place::Hash(HashKey(0)), 0);
        for number in 0..8 {
            lane.push(record(number));
        }
        check(&lane, &[0, 1, 2, 3, 4, 5, 6, 7]);
        let mut cut = vec![lane.pop().unwrap()];
        cut.extend(lane.take_first(2, Vec::new()));
        check(&lane, &[3, 4, 5, 6, 7]);
        assert_eq!(lane.sweep(|record| record.number == 5).len(), 1);
        check(&lane, &[3, 4, 6, 7]);
        lane.merge(cut);
        check(&lane, &[0, 1, 2, 3, 4, 6, 7]);
        lane.merge(vec![record(5)]);
        check(&lane, &[0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(lane.drain().len(), 8);
        check(&lane, &[]);
        lane.merge(vec![record(9)]);
        check(&lane, &[9]);
        lane.push(record(10));
        let all: Vec<u64> =
            lane.take_first(2, Vec::with_capacity(4)).iter().map(|record| record.number).collect();
        assert_eq!(all, [9, 10]);
        check(&lane, &[]);
    }
}
