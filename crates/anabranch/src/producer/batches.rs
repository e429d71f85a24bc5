//! Who waits for which records: a flush waits for all that were accepted before it.

use std::collections::VecDeque;
use tokio::sync::oneshot;

/// Records between two flushes are one batch.
#[derive(Debug)]
pub(super) struct Batches {
    /// The number of the oldest batch that is kept.
    first: u32,
    /// Outstanding records of each batch, and who waits for it and for those before it.
    kept: VecDeque<(usize, Vec<oneshot::Sender<()>>)>,
}

impl Batches {
    pub(super) fn new() -> Self {
        Self { first: 0, kept: VecDeque::from([(0, Vec::new())]) }
    }

    /// Counts a record, and gives the number of its batch.
    pub(super) fn enter(&mut self) -> u32 {
        let newest = self.kept.len() - 1;
        self.kept[newest].0 += 1;
        self.first.wrapping_add(u32::try_from(newest).unwrap_or(u32::MAX))
    }

    /// Counts a record of this batch as settled.
    pub(super) fn leave(&mut self, batch: u32) {
        if let Some((outstanding, _)) = self.kept.get_mut(batch.wrapping_sub(self.first) as usize) {
            *outstanding -= 1;
        }
    }

    /// Has someone wait for everything counted so far.
    pub(super) fn wait(&mut self, done: oneshot::Sender<()>) {
        let newest = self.kept.len() - 1;
        // Nothing was counted since the last one began to wait: this one waits for the same.
        let at = if self.kept[newest].0 == 0 { newest.saturating_sub(1) } else { newest };
        let waiters = &mut self.kept[at].1;
        waiters.retain(|waiter| !waiter.is_closed());
        waiters.push(done);
        if at == newest {
            self.kept.push_back((0, Vec::new()));
        }
    }

    /// Tells those whose records are all settled.
    pub(super) fn tell(&mut self) {
        while self.kept.len() > 1 && self.kept[0].0 == 0 {
            if let Some((_, waiters)) = self.kept.pop_front() {
                self.first = self.first.wrapping_add(1);
                for waiter in waiters {
                    // Whoever no longer waits need not be told.
                    let _ = waiter.send(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_waits_for_its_own_records_and_those_before() {
        let mut batches = Batches::new();
        let old = batches.enter();
        let (first, mut first_done) = oneshot::channel();
        batches.wait(first);
        let (second, mut second_done) = oneshot::channel();
        let new = batches.enter();
        batches.wait(second);
        batches.leave(new);
        batches.tell();
        assert!(second_done.try_recv().is_err(), "the older record is outstanding");
        batches.leave(old);
        batches.tell();
        assert!(first_done.try_recv().is_ok() && second_done.try_recv().is_ok());
        let (third, mut third_done) = oneshot::channel();
        batches.wait(third);
        batches.tell();
        assert!(third_done.try_recv().is_ok(), "nothing is outstanding");
    }

    #[test]
    fn flushes_that_are_given_up_leave_nothing_behind() {
        let mut batches = Batches::new();
        let stuck = batches.enter();
        for _ in 0..1_000 {
            let (done, waiting) = oneshot::channel();
            batches.wait(done);
            drop(waiting);
            batches.tell();
        }
        assert_eq!(batches.kept.len(), 2, "one for the record, one for those to come");
        assert_eq!(batches.kept[0].1.len(), 1);
        let (done, mut waiting) = oneshot::channel();
        batches.wait(done);
        batches.leave(stuck);
        batches.tell();
        assert!(waiting.try_recv().is_ok());
    }
}
