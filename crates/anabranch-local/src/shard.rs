//! A shard: its hash range, its parents and its log.

use crate::change::NewShard;
use crate::limit::ShardRates;
use crate::lock;
use crate::memory::RecordMemory;
use crate::record_batch::SequenceBase;
use crate::shard_log::{ENDING_COUNTER, STARTING_COUNTER, ShardLog};
use anabranch_model::hash::HashRange;
use anabranch_model::ids::ShardId;
use anabranch_model::sequence::SequenceNumber;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

/// The prefix 49 of the service's sequence numbers, at its position in the high limb.
const HIGH_BASE: u64 = 49 * 10_u64.pow(16);

/// Returns the high limb for a shard opened at `born_ms`, given the limbs of its parents.
pub(crate) fn high_limb(born_ms: u64, parents: impl IntoIterator<Item = u64>) -> u64 {
    // 13 digits of milliseconds last until the year 2286. A later clock must not overflow the limb.
    let by_birth = HIGH_BASE + born_ms.min(9_999_999_999_999) * 1000;
    parents.into_iter().fold(by_birth, |high, parent| high.max(parent + 1))
}

/// The immutable properties of a shard, and its log.
#[derive(Debug)]
pub(crate) struct Shard {
    /// The shard's index in its stream.
    pub(crate) index: u32,
    pub(crate) id: ShardId,
    /// The range of hash keys that the shard covers.
    pub(crate) range: HashRange,
    /// Indexes of its parents: none, one (split) or two (merge).
    pub(crate) parents: Vec<u32>,
    /// Time of its opening, in milliseconds since 1970.
    pub(crate) born_ms: u64,
    /// The part common to all its sequence numbers.
    pub(crate) stamp: SequenceBase,
    /// Records and rates. A sequence number is assigned and its record stored under one hold of the
    /// lock.
    inside: Mutex<ShardInner>,
    /// Wakes subscriptions when records arrive or the shard closes.
    pub(crate) news: Notify,
}

/// The part of a shard that puts and reads change.
#[derive(Debug)]
pub(crate) struct ShardInner {
    pub(crate) log: ShardLog,
    pub(crate) rates: ShardRates,
}

impl Shard {
    pub(crate) fn new(
        index: u32,
        shard: &NewShard,
        born_ms: u64,
        memory: Arc<RecordMemory>,
    ) -> Self {
        let inside =
            ShardInner { log: ShardLog::new(born_ms, memory), rates: ShardRates::full(born_ms) };
        Self {
            index,
            id: ShardId::from_index(index),
            range: shard.range,
            parents: shard.parents.clone(),
            born_ms,
            stamp: SequenceBase { high: shard.high, low: index },
            inside: Mutex::new(inside),
            news: Notify::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ShardInner> {
        lock::lock(&self.inside)
    }

    pub(crate) fn starting_number(&self) -> SequenceNumber {
        self.stamp.number(STARTING_COUNTER)
    }

    /// Returns the ending sequence number, which the shard shows once it is closed.
    pub(crate) fn ending_number(&self) -> SequenceNumber {
        self.stamp.number(ENDING_COUNTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_have_56_digits_and_children_are_above_parents() {
        let birth = high_limb(1_700_000_000_000, []);
        let stamp = SequenceBase { high: birth, low: 3 };
        assert_eq!(stamp.number(1).to_string().len(), 56);
        assert!(high_limb(1_700_000_000_000, [birth]) > birth);
        assert!(high_limb(1_600_000_000_000, [birth, birth + 5]) > birth + 5);
    }
}
