//! The memory that the records of all shards take, and its bound.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a record may take beside its key and data: its index entry, and room that its segment
/// keeps for the next one.
const RECORD_OVERHEAD: usize = 64;

/// Bytes of memory that records take. Shared by all shards of an engine.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Bytes of all segments.
    used: AtomicUsize,
    /// Bytes of records that are about to be stored.
    coming: AtomicUsize,
    /// Bytes that there may be. `None`: no bound.
    most: Option<usize>,
}

/// Room for records that are about to be stored. Dropped, it is given back: what was stored is
/// counted by then.
#[must_use]
#[derive(Debug)]
pub(crate) struct Room<'a> {
    memory: &'a Memory,
    bytes: usize,
}

impl Memory {
    /// Memory of at most `most` bytes.
    pub(crate) fn up_to(most: Option<usize>) -> Self {
        Self { most, ..Self::default() }
    }

    /// Bytes that records take.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that there may be.
    pub(crate) fn most(&self) -> Option<usize> {
        self.most
    }

    /// Takes room for `records` records with `bytes` bytes of keys and data. `None` if there is none.
    pub(crate) fn room_for(&self, records: usize, bytes: usize) -> Option<Room<'_>> {
        let Some(most) = self.most else { return Some(Room { memory: self, bytes: 0 }) };
        let bytes = bytes.saturating_add(records.saturating_mul(RECORD_OVERHEAD));
        let before = self.coming.fetch_add(bytes, Ordering::Relaxed);
        let room = Room { memory: self, bytes };
        let total = self.used().saturating_add(before).saturating_add(bytes);
        (total <= most).then_some(room)
    }

    /// Whether there is a bound, and no room for `records` records with `bytes` bytes of keys and
    /// data.
    pub(crate) fn is_full(&self, records: usize, bytes: impl FnOnce() -> usize) -> bool {
        self.most.is_some() && self.room_for(records, bytes()).is_none()
    }

    /// A segment has another size now.
    pub(crate) fn resized(&self, before: usize, after: usize) {
        // Most records fit in the room that their segment has, and shards share the counter.
        if after == before {
            return;
        }
        if after > before {
            self.used.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.used.fetch_sub(before - after, Ordering::Relaxed);
        }
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.memory.coming.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_up_to_the_bound_and_comes_back() {
        let memory = Memory::up_to(Some(1_000));
        memory.resized(0, 500);
        let first = memory.room_for(1, 300).unwrap();
        assert!(memory.room_for(1, 300).is_none());
        assert!(memory.room_for(1, 72).is_some(), "a refusal took no room");
        drop(first);
        let second = memory.room_for(1, 436).unwrap();
        memory.resized(500, 1_000);
        drop(second);
        assert!(memory.room_for(0, 1).is_none());
        memory.resized(1_000, 0);
        assert!(memory.room_for(1, 900).is_some());
        assert!(Memory::default().room_for(usize::MAX, usize::MAX).is_some());
    }
}
