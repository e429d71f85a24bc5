//! Queues that wait until the rate of their shard admits them.

use super::send::MachineTimer;
use super::{Machine, ShardQueue};
use crate::bucket::Admission;
use crate::hash::HashKey;
use crate::ids::ShardId;
use crate::limits::PUT_RECORDS_MAX_RECORDS;
use crate::produce::rate::ShardRate;
use crate::produce::settings::Aggregation;
use crate::produce::shard_queue::QueueScope;
use std::cmp::Reverse;
use std::collections::VecDeque;

/// The rate of one shard, and the queues that wait for it.
#[derive(Debug)]
pub(super) struct ShardLimiter {
    pub(super) shard: ShardId,
    pub(super) rate: ShardRate,
    /// Waiting queues, the longest-waiting first.
    waiting: VecDeque<usize>,
    /// Kinesis records that were admitted and not yet sent.
    reserved_records: u64,
    /// Bytes of the admitted Kinesis records.
    reserved_bytes: u64,
    /// True while a timer is set for the waiting queues.
    armed: bool,
}

/// Further Kinesis records of one queue that are sent together with its first one, without order.
#[derive(Debug, Default)]
pub(super) struct ExtraRecords {
    records: u64,
    bytes: u64,
}

impl ShardLimiter {
    /// Creates a limiter without waiters and reservations.
    pub(super) fn new(shard: ShardId, rate: ShardRate) -> Self {
        let waiting = VecDeque::new();
        Self { shard, rate, waiting, reserved_records: 0, reserved_bytes: 0, armed: false }
    }

    fn admission(&mut self, bytes: u64, now_ms: u64) -> Admission {
        let ahead = [self.reserved_records, self.reserved_bytes];
        self.rate.admission(now_ms, ahead, bytes)
    }

    fn reserve(&mut self, bytes: u64) {
        self.reserved_records += 1;
        self.reserved_bytes += bytes;
    }
}

impl<T> Machine<T> {
    /// Returns true if the rate of the queue's shard admits its next Kinesis record. Otherwise the
    /// queue waits.
    pub(super) fn admit(&mut self, at: usize, now_ms: u64) -> bool {
        let Some(Some(lane)) = self.lanes.get(at) else { return false };
        let Some(shard) = self.router.shard_at(hash_of(lane)) else { return true };
        if lane.reserved.is_some() {
            return true;
        }
        let bytes = self.next_bytes(at) as u64;
        let Some(limiter) = self.limiters.get_mut(shard) else { return true };
        // Queues that wait already come first.
        if limiter.waiting.is_empty() && limiter.admission(bytes, now_ms) == Admission::Passed {
            limiter.reserve(bytes);
            self.lane_mut(at).reserved = Some(bytes);
            return true;
        }
        limiter.waiting.push_back(at);
        self.arm_limiter(shard, now_ms);
        false
    }

    /// Returns true if the shard's rate also admits the queue's next Kinesis record on top of
    /// `beside`, and adds it to `beside`. If no shard is known, only the size of a request limits
    /// it.
    pub(super) fn admit_beside(
        &mut self,
        at: usize,
        beside: &mut ExtraRecords,
        now_ms: u64,
    ) -> bool {
        let bytes = self.next_bytes(at) as u64;
        let Some(Some(lane)) = self.lanes.get(at) else { return false };
        if lane.is_empty() || beside.records + 1 >= PUT_RECORDS_MAX_RECORDS as u64 {
            return false;
        }
        let limiter = self.router.shard_at(hash_of(lane));
        if let Some(limiter) = limiter.and_then(|shard| self.limiters.get_mut(shard)) {
            let records = limiter.reserved_records + beside.records;
            let ahead = [records, limiter.reserved_bytes + beside.bytes];
            if limiter.rate.admission(now_ms, ahead, bytes) != Admission::Passed {
                return false;
            }
        }
        beside.records += 1;
        beside.bytes += bytes;
        true
    }

    /// Moves the queues that a shard's rate now admits from the waiters to the ready line.
    pub(super) fn release(&mut self, shard: usize, now_ms: u64) {
        let Some(limiter) = self.limiters.get_mut(shard) else { return };
        limiter.armed = false;
        while let Some(&at) = self.limiters[shard].waiting.front() {
            let bytes = self.next_bytes(at) as u64;
            let limiter = &mut self.limiters[shard];
            // A queue that is gone or has a reservation only has to leave the waiters.
            if let Some(Some(lane)) = self.lanes.get_mut(at)
                && lane.reserved.is_none()
            {
                if limiter.admission(bytes, now_ms) != Admission::Passed {
                    break;
                }
                limiter.reserve(bytes);
                lane.reserved = Some(bytes);
            }
            limiter.waiting.pop_front();
            self.ready.push_back(at);
        }
        self.arm_limiter(shard, now_ms);
    }

    fn arm_limiter(&mut self, shard: usize, now_ms: u64) {
        let Some(&at) = self.limiters[shard].waiting.front() else { return };
        let bytes = self.next_bytes(at) as u64;
        let limiter = &mut self.limiters[shard];
        if limiter.armed {
            return;
        }
        let wait_ms = match limiter.admission(bytes, now_ms) {
            Admission::Wait { ms } => ms,
            Admission::Passed | Admission::Never => 1,
        };
        limiter.armed = true;
        self.timers.push(Reverse((now_ms.saturating_add(wait_ms), MachineTimer::Rate(shard))));
    }

    /// Charges the rate for a Kinesis record that is sent, in place of its reservation.
    pub(super) fn account(&mut self, at: usize, bytes: usize, now_ms: u64) {
        let lane = self.lane_mut(at);
        let (hash, reserved) = (hash_of(lane), lane.reserved.take());
        let Some(shard) = self.router.shard_at(hash) else { return };
        let Some(limiter) = self.limiters.get_mut(shard) else { return };
        if let Some(reserved) = reserved {
            limiter.reserved_records -= 1;
            limiter.reserved_bytes -= reserved;
        }
        limiter.rate.charge(now_ms, bytes as u64);
    }

    /// Releases the reservation of a queue that has nothing to send after all.
    pub(super) fn unreserve(&mut self, at: usize) {
        let Some(Some(lane)) = self.lanes.get_mut(at) else { return };
        let (hash, reserved) = (hash_of(lane), lane.reserved.take());
        if let (Some(shard), Some(reserved)) = (self.router.shard_at(hash), reserved)
            && let Some(limiter) = self.limiters.get_mut(shard)
        {
            limiter.reserved_records -= 1;
            limiter.reserved_bytes -= reserved;
        }
    }

    /// Returns the estimated size of a queue's next Kinesis record, in bytes.
    pub(super) fn next_bytes(&self, at: usize) -> usize {
        let Some(Some(lane)) = self.lanes.get(at) else { return 0 };
        match lane.sealed.front() {
            Some(frozen) => frozen.sealed.bytes(),
            None if self.settings.aggregation == Aggregation::Off => {
                lane.queue.front().map_or(0, |first| first.put.key.len() + first.put.data.len())
            }
            None => lane.queue_bytes.min(self.aggregate_target()),
        }
    }
}

/// Returns a hash of the queue, which finds the shard whose rate it uses.
pub(super) fn hash_of<T>(lane: &ShardQueue<T>) -> HashKey {
    match &lane.place {
        QueueScope::Shard(_, range) => range.end(),
        QueueScope::Hash(hash) => *hash,
    }
}
