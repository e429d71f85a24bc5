//! Watermark of a lane: written only by the lane after each call, and read without a lock.

use anabranch_model::position::Position;
use anabranch_model::sequence::SequenceNumber;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The last record that a lane has done, and the number of records done.
///
/// This is a seqlock with one writer and any number of readers. The version is odd while a write is
/// in progress. A reader that sees an odd version, or another version after than before, reads
/// again.
#[derive(Debug, Default)]
pub(super) struct Watermark {
    /// Twice the number of writes, plus one while a write is in progress.
    version: AtomicU64,
    /// Sequence number of the last record.
    limbs: [AtomicU64; 3],
    /// Position of the last record in its aggregate.
    sub: AtomicU64,
    /// Number of records done.
    count: AtomicU64,
}

impl Watermark {
    /// Notes that `count` more records are done, the last of them at this position.
    #[inline]
    pub(super) fn advance(&self, sequence: SequenceNumber, sub: u64, count: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (limb, now) in self.limbs.iter().zip(sequence.limbs()) {
            limb.store(now, Ordering::Relaxed);
        }
        self.sub.store(sub, Ordering::Relaxed);
        let count = self.count.load(Ordering::Relaxed).wrapping_add(count as u64);
        self.count.store(count, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Returns the position of the last record done, if any, and the number of records done.
    pub(super) fn read(&self) -> (Option<Position>, u64) {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let [high, middle, low] =
                [0, 1, 2].map(|limb: usize| self.limbs[limb].load(Ordering::Relaxed));
            let sub = self.sub.load(Ordering::Relaxed);
            let count = self.count.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.version.load(Ordering::Relaxed) == before {
                let sequence = SequenceNumber::from_limbs(high, middle, low);
                let at = sequence.map(|sequence| Position::At { sequence, sub });
                return (at.filter(|_| before > 0), count);
            }
            // The writer may have been preempted in the middle of a write.
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_reader_beside_the_writer_never_sees_half_of_a_mark() {
        let (mark, over) = (Watermark::default(), AtomicBool::new(false));
        assert_eq!(mark.read(), (None, 0));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut last = 0;
                while !over.load(Ordering::Acquire) {
                    let (at, count) = mark.read();
                    let whole = SequenceNumber::from_limbs(count, count, count);
                    let whole = whole.map(|sequence| Position::At { sequence, sub: count });
                    assert_eq!(at, whole.filter(|_| count > 0));
                    assert!(count >= last, "{count} after {last}");
                    last = count;
                }
                last
            });
            for number in 1..=200_000 {
                let sequence = SequenceNumber::from_limbs(number, number, number).unwrap();
                mark.advance(sequence, number, 1);
            }
            over.store(true, Ordering::Release);
            assert!(reader.join().unwrap() <= 200_000);
        });
        assert_eq!(mark.read().1, 200_000);
    }
}
