//! The memory used by the records of all shards, and its limit.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a record may take in addition to its key and data: its index entry, and capacity that
/// its segment reserves for the next record.
const RECORD_OVERHEAD: usize = 64;

/// Bytes of memory used by records. Shared by all shards of an engine.
#[derive(Debug, Default)]
pub(crate) struct RecordMemory {
    /// Bytes of all segments.
    used: AtomicUsize,
    /// Bytes reserved for records that are about to be stored.
    coming: AtomicUsize,
    /// Limit in bytes. `None`: unlimited.
    most: Option<usize>,
}

/// Memory reserved for records that are about to be stored. Dropping it releases the reservation;
/// the segments have counted the stored records by then.
#[must_use]
#[derive(Debug)]
pub(crate) struct MemoryReservation<'a> {
    memory: &'a RecordMemory,
    bytes: usize,
}

impl RecordMemory {
    /// Creates a counter with a limit of `most` bytes.
    pub(crate) fn up_to(most: Option<usize>) -> Self {
        Self { most, ..Self::default() }
    }

    /// Returns the bytes used by records.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the limit in bytes.
    pub(crate) fn most(&self) -> Option<usize> {
        self.most
    }

    /// Reserves memory for `records` records with `bytes` bytes of keys and data. Returns `None` if
    /// that exceeds the limit.
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

    /// Returns true if there is a limit, and `records` records with `bytes` bytes of keys and data
    /// exceed it.
    pub(crate) fn is_full(&self, records: usize, bytes: impl FnOnce() -> usize) -> bool {
        self.most.is_some() && self.try_reserve(records, bytes()).is_none()
    }

    /// Accounts for a segment whose size changed.
    pub(crate) fn resized(&self, before: usize, after: usize) {
        // Most records fit in the capacity that their segment already has. Skipping them spares the
        // counter, which all shards share.
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
