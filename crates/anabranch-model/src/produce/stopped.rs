//! Keys that stand stopped because one of their records has no certain place.

use crate::hash::HashKey;
use crate::record::Key;
use std::collections::BTreeMap;

/// What order belongs to: a partition key, with the explicit hash key that it was put under.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyId {
    /// The partition key.
    pub key: Key,
    /// The explicit hash key, if the record had one.
    pub explicit: Option<HashKey>,
}

/// The stopped keys. Nothing is ever evicted: a forgotten hole would be a silent one.
#[derive(Debug, Clone)]
pub(super) struct Stopped {
    /// For each key the number of its first hole. What was put before may still be placed.
    holes: BTreeMap<KeyId, u64>,
    /// How many keys may stand here.
    max: usize,
    /// Whether one more key had to stop than may stand here.
    overflowed: bool,
}

/// What came of stopping a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The key stands stopped now.
    Stopped,
    /// It stood stopped already.
    Already,
    /// There is no room: the producer has to stop.
    Full,
}

impl Stopped {
    pub(super) fn new(max: usize) -> Self {
        Self { holes: BTreeMap::new(), max, overflowed: false }
    }

    /// Whether no key is stopped, the usual case.
    pub(super) fn is_empty(&self) -> bool {
        self.holes.is_empty()
    }

    /// Whether the producer had to stop.
    pub(super) fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Stops a key at the hole with this number.
    pub(super) fn stop(&mut self, key: KeyId, hole: u64) -> Stop {
        if let Some(first) = self.holes.get_mut(&key) {
            *first = hole.min(*first);
            return Stop::Already;
        }
        if self.holes.len() >= self.max {
            self.overflowed = true;
            return Stop::Full;
        }
        // Kept for long, so a copy: the key may be a slice of something large.
        let KeyId { key, explicit } = key;
        self.holes.insert(KeyId { key: key.as_str().into(), explicit }, hole);
        Stop::Stopped
    }

    /// Whether a record of this key and number comes after a hole.
    pub(super) fn refuses(&self, key: &KeyId, number: u64) -> bool {
        self.holes.get(key).is_some_and(|hole| *hole < number)
    }

    /// Lets a key go on. `false` if it did not stand stopped.
    pub(super) fn resume(&mut self, key: &KeyId) -> bool {
        self.holes.remove(key).is_some()
    }

    /// The keys that stand stopped.
    pub(super) fn keys(&self) -> impl Iterator<Item = &KeyId> {
        self.holes.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn a_stopped_key_keeps_nothing_else_alive() {
        let carrier = Bytes::from(vec![b'k'; 1 << 20]);
        let key = Key::of_slice(&carrier, 0..40).expect("the letters are UTF-8");
        let mut stopped = Stopped::new(10);
        assert_eq!(stopped.stop(KeyId { key, explicit: None }, 3), Stop::Stopped);
        assert!(carrier.is_unique());
        let same = KeyId { key: "k".repeat(40).as_str().into(), explicit: None };
        assert!(stopped.refuses(&same, 4));
    }
}
