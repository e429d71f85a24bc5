//! Memory bound of the producer's buffer. Puts reserve bytes, and the driver releases them with
//! each outcome.

use super::queue::wake_caught;
use super::record::PutError;
use tokio::sync::{Semaphore, TryAcquireError};

/// Bytes reserved in advance at a time for small records.
const ASIDE_BYTES: u32 = 64 * 1024;

/// Free space of the buffer, in bytes. Closed with the producer.
#[derive(Debug)]
pub(super) struct BufferLimit {
    free: Semaphore,
    /// Total size of the buffer.
    bytes: usize,
}

/// Space reserved in advance for small records, so that each of them does not access the semaphore.
///
/// A put that finds too little free space releases it first. The driver releases it whenever it
/// takes input. Space is only reserved in advance together with a record, so no waiter is held up
/// by it for long.
#[derive(Debug, Default)]
pub(super) struct PrepaidBytes(u32);

impl PrepaidBytes {
    /// Takes all reserved bytes, which the caller must release.
    pub(super) fn try_reserve(&mut self) -> usize {
        std::mem::take(&mut self.0) as usize
    }
}

impl BufferLimit {
    pub(super) fn new(bytes: usize) -> Self {
        Self { free: Semaphore::new(bytes), bytes }
    }

    /// Returns the bytes to reserve for `cost`. A cost above the buffer size takes the whole
    /// buffer.
    pub(super) fn clamp(&self, cost: usize) -> u32 {
        u32::try_from(cost.min(self.bytes)).unwrap_or(u32::MAX)
    }

    /// Tries to reserve `cost` bytes without queueing. Queued waiters are served first, except that
    /// small records may use space that was reserved in advance.
    pub(super) fn take(&self, cost: u32) -> Result<bool, PutError> {
        match self.free.try_acquire_many(cost) {
            Ok(room) => {
                room.forget();
                Ok(true)
            }
            Err(TryAcquireError::NoPermits) => Ok(false),
            Err(TryAcquireError::Closed) => Err(PutError::Closed),
        }
    }

    /// Waits until `cost` bytes are free, and reserves them.
    pub(super) async fn reserve(&self, cost: u32) -> Result<(), PutError> {
        self.free.acquire_many(cost).await.map_err(|_| PutError::Closed)?.forget();
        Ok(())
    }

    /// Reserves `cost` bytes from `aside`, topping it up from the free space if needed. Returns
    /// false if there is not enough.
    #[inline]
    pub(super) fn try_reserve_prepaid(&self, aside: &mut PrepaidBytes, cost: u32) -> bool {
        if aside.0 < cost && !self.prepay(aside, cost - aside.0) {
            return false;
        }
        aside.0 -= cost;
        true
    }

    /// Moves at least `least` bytes of free space to `aside`.
    #[cold]
    fn prepay(&self, aside: &mut PrepaidBytes, least: u32) -> bool {
        for more in [least.saturating_add(ASIDE_BYTES), least] {
            if self.take(more) == Ok(true) {
                aside.0 += more;
                return true;
            }
        }
        false
    }

    /// Releases `bytes`.
    pub(super) fn release(&self, bytes: usize) {
        if bytes > 0 {
            wake_caught(|| self.free.add_permits(bytes));
        }
    }

    /// Fails all current and later reservations with [`PutError::Closed`].
    pub(super) fn close(&self) {
        wake_caught(|| self.free.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Take(u32),
        Aside(u32),
        FreeAside,
        /// Releases the oldest reservation.
        Free,
    }

    fn step() -> impl Strategy<Value = Step> {
        let cost = prop_oneof![1_u32..400, 1_u32..200_000];
        prop_oneof![
            1 => cost.clone().prop_map(Step::Take),
            4 => cost.prop_map(Step::Aside),
            1 => Just(Step::FreeAside),
            2 => Just(Step::Free),
        ]
    }

    proptest! {
        /// No space is granted twice or lost, and space that is free is granted.
        #[test]
        fn room_is_given_when_it_is_there_and_only_then(
            bytes in 1_usize..300_000,
            steps in proptest::collection::vec(step(), 1..200),
        ) {
            let room = BufferLimit::new(bytes);
            let (mut aside, mut held) = (PrepaidBytes::default(), Vec::new());
            for step in steps {
                let free = bytes - held.iter().map(|cost| *cost as usize).sum::<usize>();
                match step {
                    Step::Take(cost) => {
                        let taken = room.take(cost).unwrap();
                        let there = free - aside.0 as usize >= cost as usize;
                        prop_assert_eq!(taken, there);
                        held.extend(taken.then_some(cost));
                    }
                    Step::Aside(cost) => {
                        let taken = room.try_reserve_prepaid(&mut aside, cost);
                        prop_assert_eq!(taken, free >= cost as usize);
                        held.extend(taken.then_some(cost));
                    }
                    Step::FreeAside => room.release(aside.try_reserve()),
                    Step::Free if held.is_empty() => {}
                    Step::Free => room.release(held.remove(0) as usize),
                }
                let held: usize = held.iter().map(|cost| *cost as usize).sum();
                prop_assert_eq!(room.free.available_permits() + aside.0 as usize + held, bytes);
                prop_assert!(aside.0 <= ASIDE_BYTES);
            }
        }
    }

    #[test]
    fn what_is_larger_than_all_of_it_takes_all_of_it() {
        let room = BufferLimit::new(1_000);
        assert_eq!(
            [999, 1_000, 1_001, usize::MAX].map(|cost| room.clamp(cost)),
            [999, 1_000, 1_000, 1_000]
        );
    }

    #[test]
    fn a_closed_room_gives_nothing() {
        let room = BufferLimit::new(1_000);
        room.close();
        assert_eq!(room.take(1), Err(PutError::Closed));
        assert!(!room.try_reserve_prepaid(&mut PrepaidBytes::default(), 1));
    }
}
