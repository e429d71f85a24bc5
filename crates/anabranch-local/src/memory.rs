//! The memory that the records of all shards take, and its bound.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a record may take beside its key and data: its index entry, and room that its segment
/// keeps for the next one.
const RECORD_OVERHEAD: usize = 64;

/// Bytes of memory that records take. Shared by all shards of an engine.
#[derive(Debug, Default)]
pub(crate) struct RecordMemory {
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
pub(crate) struct MemoryReservation<'a> {
    memory: &'a RecordMemory,
    bytes: usize,
}

impl RecordMemory {
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
    pub(crate) fn try_reserve(
        &self,
        records: usize,
        bytes: usize,
    ) -> Option<MemoryReservation<'_>> {
        let Some(most) = self.most else {
            return Some(MemoryReservation { memory: self, bytes: 0 });
        };
        let bytes = bytes.saturating_add(records.saturating_mul(RECORD_OVERHEAD));
        let before = self.coming.fetch_add(bytes, Ordering::Relaxed);
        let room = MemoryReservation { memory: self, bytes };
        let total = self.used().saturating_add(before).saturating_add(bytes);
        (total <= most).then_some(room)
    }

    /// Whether there is a bound, and no room for `records` records with `bytes` bytes of keys and
    /// data.
    pub(crate) fn is_full(&self, records: usize, bytes: impl FnOnce() -> usize) -> bool {
        self.most.is_some() && self.try_reserve(records, bytes()).is_none()
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

impl Drop for MemoryReservation<'_> {
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
        let memory = RecordMemory::up_to(Some(1_000));
        memory.resized(0, 500);
        let first = memory.try_reserve(1, 300).unwrap();
        assert!(memory.try_reserve(1, 300).is_none());
        assert!(memory.try_reserve(1, 72).is_some(), "a refusal took no room");
        drop(first);
        let second = memory.try_reserve(1, 436).unwrap();
        memory.resized(500, 1_000);
        drop(second);
        assert!(memory.try_reserve(0, 1).is_none());
        memory.resized(1_000, 0);
        assert!(memory.try_reserve(1, 900).is_some());
        assert!(RecordMemory::default().try_reserve(usize::MAX, usize::MAX).is_some());
    }
}
