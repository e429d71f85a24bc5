//! Keys that are stopped because one of their records was not placed for certain.

use crate::hash::HashKey;
use crate::produce::outcome::RejectReason;
use crate::record::PartitionKey;
use std::collections::BTreeMap;

/// Unit of ordering: a partition key, with the explicit hash key that it was put under.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderingKey {
    /// Partition key.
    pub key: PartitionKey,
    /// Explicit hash key, if the record had one.
    pub explicit: Option<HashKey>,
}

/// The set of stopped keys. Entries are never evicted: a forgotten failed record would be a silent
/// loss of order.
#[derive(Debug, Clone)]
pub(super) struct StoppedKeys {
    /// Put number of the first failed record of each key. Earlier records may still be placed.
    holes: BTreeMap<OrderingKey, u64>,
    /// Maximum number of keys in `holes`.
    max: usize,
    /// Set once one more key than `max` had to stop. All keys count as stopped then.
    overflow: Option<StoppedOverflow>,
}

/// State after an overflow: every key counts as stopped until it is resumed.
#[derive(Debug, Clone)]
struct StoppedOverflow {
    /// Number of the next put at the time of the overflow.
    from: u64,
    /// Keys resumed since, at most `max`, each with the number of the next put at that time.
    resumed: BTreeMap<OrderingKey, u64>,
}

/// Result of stopping a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopKeyResult {
    /// The key is now stopped.
    Stopped,
    /// The key was stopped already, or all keys are.
    Already,
    /// The set is full: the producer has to stop.
    Full,
}

impl StoppedKeys {
    pub(super) fn new(max: usize) -> Self {
        Self { holes: BTreeMap::new(), max, overflow: None }
    }

    /// Returns true if no key is stopped, which is the usual case.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.holes.is_empty() && self.overflow.is_none()
    }

    /// Returns true if the producer had to stop.
    pub(super) fn overflowed(&self) -> bool {
        self.overflow.is_some()
    }

    /// Returns true if the record was put before the producer stopped, so that it is not sent
    /// again.
    pub(super) fn has_given_up(&self, number: u64) -> bool {
        self.overflow.as_ref().is_some_and(|overflow| number < overflow.from)
    }

    /// Stops a key at the failed record with number `hole`. `next` is the number of the next put.
    pub(super) fn stop(&mut self, key: &OrderingKey, hole: u64, next: u64) -> StopKeyResult {
        if let Some(first) = self.holes.get_mut(key) {
            *first = hole.min(*first);
            return StopKeyResult::Already;
        }
        if let Some(overflow) = &mut self.overflow
            && overflow.resumed.remove(key).is_none()
        {
            return StopKeyResult::Already;
        }
        if self.holes.len() >= self.max {
            if self.overflow.is_some() {
                return StopKeyResult::Already;
            }
            self.overflow = Some(StoppedOverflow { from: next, resumed: BTreeMap::new() });
            return StopKeyResult::Full;
        }
        self.holes.insert(own(key), hole);
        StopKeyResult::Stopped
    }

    /// Returns the reason to reject a record of this key and number, if there is one.
    pub(super) fn refusal(&self, key: &OrderingKey, number: u64) -> Option<RejectReason> {
        if let Some(overflow) = &self.overflow
            && overflow.resumed.get(key).is_none_or(|from| number < *from)
        {
            return Some(RejectReason::ProducerStopped);
        }
        let refused = self.holes.get(key).is_some_and(|hole| *hole < number);
        refused.then_some(RejectReason::KeyStopped)
    }

    /// Resumes a key. Returns `false` if it was not stopped, or if `max` keys have been resumed one
    /// by one since all keys stopped. `next` is the number of the next put.
    pub(super) fn resume(&mut self, key: &OrderingKey, next: u64) -> bool {
        let Some(overflow) = &mut self.overflow else {
            return self.holes.remove(key).is_some();
        };
        if overflow.resumed.contains_key(key) || overflow.resumed.len() >= self.max {
            return false;
        }
        overflow.resumed.insert(own(key), next);
        self.holes.remove(key);
        true
    }

    /// Resumes all keys. Returns the number of keys in the set.
    pub(super) fn resume_all(&mut self) -> usize {
        self.overflow = None;
        std::mem::take(&mut self.holes).len()
    }

    /// Returns the stopped keys that fit into the set.
    pub(super) fn keys(&self) -> impl Iterator<Item = &OrderingKey> {
        self.holes.keys()
    }
}

/// Returns a copy to keep for long: the key may be a slice of a large buffer.
fn own(key: &OrderingKey) -> OrderingKey {
    OrderingKey { key: key.key.as_str().into(), explicit: key.explicit }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn id(key: &str) -> OrderingKey {
        OrderingKey { key: key.into(), explicit: None }
    }

    #[test]
    fn a_stopped_key_keeps_nothing_else_alive() {
        let carrier = Bytes::from(vec![b'k'; 1 << 20]);
        let sliced = || PartitionKey::of_slice(&carrier, 0..40).expect("the letters are UTF-8");
        let mut stopped = StoppedKeys::new(1);
        assert_eq!(
            stopped.stop(&OrderingKey { key: sliced(), explicit: None }, 3, 9),
            StopKeyResult::Stopped
        );
        assert!(carrier.is_unique());
        let same = id(&"k".repeat(40));
        assert_eq!(stopped.refusal(&same, 4), Some(RejectReason::KeyStopped));
        assert_eq!(stopped.stop(&id("other"), 4, 9), StopKeyResult::Full);
        assert!(stopped.resume(&OrderingKey { key: sliced(), explicit: None }, 9));
        assert!(carrier.is_unique());
    }

    /// Returns a set of two keys that a third one made overflow when 10 was the next put number.
    fn overflowed() -> StoppedKeys {
        let mut stopped = StoppedKeys::new(2);
        for (key, stop) in [
            ("a", StopKeyResult::Stopped),
            ("b", StopKeyResult::Stopped),
            ("c", StopKeyResult::Full),
        ] {
            assert_eq!(stopped.stop(&id(key), 3, 10), stop, "{key}");
        }
        stopped
    }

    #[test]
    fn a_full_set_stops_every_key_and_a_resumed_one_goes_on_with_what_is_put_from_then_on() {
        let mut stopped = overflowed();
        for key in ["a", "c", "never-seen"] {
            assert_eq!(stopped.refusal(&id(key), 10), Some(RejectReason::ProducerStopped), "{key}");
        }
        // Includes a key that did not fit into the set.
        for key in ["c", "a"] {
            assert!(stopped.resume(&id(key), 12), "{key}");
            assert!(!stopped.resume(&id(key), 13), "{key} is not stopped any more");
            assert_eq!(stopped.refusal(&id(key), 11), Some(RejectReason::ProducerStopped), "{key}");
            assert_eq!(stopped.refusal(&id(key), 12), None, "{key}");
        }
        assert_eq!(stopped.refusal(&id("b"), 12), Some(RejectReason::ProducerStopped));
        assert!(!stopped.resume(&id("b"), 14), "as many were resumed as may stand stopped");
        assert!(stopped.overflowed());
        assert!(stopped.has_given_up(9) && !stopped.has_given_up(10));
    }

    #[test]
    fn a_resumed_key_can_stop_again_while_all_others_are_stopped() {
        let mut stopped = overflowed();
        assert!(stopped.resume(&id("a"), 12));
        assert_eq!(stopped.stop(&id("a"), 12, 15), StopKeyResult::Stopped, "there is room for it");
        assert_eq!(stopped.refusal(&id("a"), 15), Some(RejectReason::ProducerStopped));
        assert!(stopped.resume(&id("a"), 16));
        assert_eq!(stopped.refusal(&id("a"), 16), None);
        assert_eq!(stopped.stop(&id("d"), 16, 17), StopKeyResult::Already, "all are stopped");
    }

    #[test]
    fn resuming_all_keys_ends_the_overflow() {
        let mut stopped = overflowed();
        assert_eq!(stopped.resume_all(), 2);
        assert!(stopped.is_empty() && !stopped.overflowed() && !stopped.has_given_up(9));
        for key in ["a", "c", "never-seen"] {
            assert_eq!(stopped.refusal(&id(key), 10), None, "{key}");
        }
        assert_eq!((stopped.resume_all(), stopped.resume(&id("a"), 11)), (0, false));
    }
}
