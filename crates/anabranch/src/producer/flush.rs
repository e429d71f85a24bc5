//! Tracks pending flushes: a flush waits for all records that were accepted before it.

use super::queue::wake_caught;
use std::collections::VecDeque;
use tokio::sync::oneshot;

/// Counts outstanding records per flush.
///
/// The records between two flushes form a group. Records are numbered from 0 in order of
/// acceptance.
#[derive(Debug)]
pub(super) struct FlushTracker {
    /// Number of the next record.
    next: u64,
    /// Groups that are not complete, oldest first. The last one is still growing.
    kept: VecDeque<FlushGroup>,
}

#[derive(Debug, Default)]
struct FlushGroup {
    /// Number of the group's first record.
    from: u64,
    /// Records of the group without an outcome.
    outstanding: usize,
    /// Flushes that wait for this group and all earlier ones.
    waiters: Vec<oneshot::Sender<()>>,
}

impl FlushTracker {
    pub(super) fn new() -> Self {
        Self { next: 0, kept: VecDeque::from([FlushGroup::default()]) }
    }

    /// Adds `records` to the newest group.
    pub(super) fn add(&mut self, records: usize) {
        self.next += records as u64;
        let newest = self.kept.len() - 1;
        self.kept[newest].outstanding += records;
    }

    /// Marks the records with these numbers as complete.
    pub(super) fn complete(&mut self, numbers: impl ExactSizeIterator<Item = u64>) {
        if let [only] = self.kept.make_contiguous() {
            only.outstanding -= numbers.len();
            return;
        }
        for number in numbers {
            let after = self.kept.partition_point(|batch| batch.from <= number);
            self.kept[after - 1].outstanding -= 1;
        }
    }

    /// Registers a flush that waits for every record added so far.
    pub(super) fn wait(&mut self, done: oneshot::Sender<()>) {
        let newest = self.kept.len() - 1;
        // If no record was added since the previous flush, this one joins its group.
        let is_new = self.kept[newest].outstanding > 0 || newest == 0;
        let at = if is_new { newest } else { newest - 1 };
        let waiters = &mut self.kept[at].waiters;
        waiters.retain(|waiter| !waiter.is_closed());
        waiters.push(done);
        if is_new {
            self.kept.push_back(FlushGroup { from: self.next, ..FlushGroup::default() });
        }
    }

    /// Completes the flushes whose records all have an outcome.
    pub(super) fn notify(&mut self) {
        while self.kept.len() > 1 && self.kept[0].outstanding == 0 {
            for waiter in self.kept.pop_front().into_iter().flat_map(|batch| batch.waiters) {
                // The caller may have stopped waiting.
                wake_caught(|| {
                    let _ = waiter.send(());
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_waits_for_its_own_records_and_those_before() {
        let mut batches = FlushTracker::new();
        batches.add(1);
        let (first, mut first_done) = oneshot::channel();
        batches.wait(first);
        let (second, mut second_done) = oneshot::channel();
        batches.add(2);
        batches.wait(second);
        batches.complete([1, 2].into_iter());
        batches.notify();
        assert!(second_done.try_recv().is_err(), "the older record is outstanding");
        batches.complete([0].into_iter());
        batches.notify();
        assert!(first_done.try_recv().is_ok() && second_done.try_recv().is_ok());
        let (third, mut third_done) = oneshot::channel();
        batches.wait(third);
        batches.notify();
        assert!(third_done.try_recv().is_ok(), "nothing is outstanding");
    }

    #[test]
    fn records_count_for_their_own_batch_however_they_are_settled() {
        let mut batches = FlushTracker::new();
        batches.add(3);
        batches.complete([1].into_iter());
        let (first, mut first_done) = oneshot::channel();
        batches.wait(first);
        batches.add(2);
        batches.complete([0, 3].into_iter());
        batches.notify();
        assert!(first_done.try_recv().is_err(), "record 2 is outstanding");
        batches.complete([4].into_iter());
        batches.notify();
        assert!(first_done.try_recv().is_err(), "record 2 is outstanding");
        batches.complete([2].into_iter());
        batches.notify();
        assert!(first_done.try_recv().is_ok());
    }

    #[test]
    fn flushes_that_are_given_up_leave_nothing_behind() {
        let mut batches = FlushTracker::new();
        batches.add(1);
        for _ in 0..1_000 {
            let (done, waiting) = oneshot::channel();
            batches.wait(done);
            drop(waiting);
            batches.notify();
        }
        assert_eq!(batches.kept.len(), 2, "one for the record, one for those to come");
        assert_eq!(batches.kept[0].waiters.len(), 1);
        let (done, mut waiting) = oneshot::channel();
        batches.wait(done);
        batches.complete([0].into_iter());
        batches.notify();
        assert!(waiting.try_recv().is_ok());
    }
}
