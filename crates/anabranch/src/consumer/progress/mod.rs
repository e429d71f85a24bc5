//! Progress of the lanes of a shard: the records dispatched to them, and the records done.

mod watermark;

use super::dispatch::resume::Resume;
use anabranch_model::lease::{Checkpoint, Layout};
use anabranch_model::position::Position;
use anabranch_model::sequence::SequenceNumber;
use std::sync::{Mutex, MutexGuard, PoisonError};
use watermark::Watermark;

/// Progress of the lanes of a shard.
#[derive(Debug)]
pub struct Progress {
    /// Records dispatched to the lanes.
    inside: Mutex<ProgressState>,
    /// Records that each lane has done. They are outside the lock, which would cost more than all
    /// other bookkeeping per record.
    marks: Box<[Watermark]>,
}

#[derive(Debug)]
struct ProgressState {
    /// Every record up to here was dispatched to its lane, or is on its way there.
    given: Position,
    /// Value of `given` before the last dispatch.
    before: Position,
    lanes: Vec<LaneProgress>,
    /// Bytes of records that were read since the last call of [`Progress::take_read_bytes`].
    read_bytes: u64,
}

#[derive(Debug)]
struct LaneProgress {
    /// Lower bound of the position up to which the lane is done. Its watermark may be higher.
    done: Position,
    /// Number of records dispatched in total.
    given: u64,
    /// Number of those that are on their way. They are lost if the task that sends them is dropped.
    unsent: u64,
}

impl LaneProgress {
    /// Returns the position up to which the lane is done. A lane without open records has no part
    /// in what was dispatched to the others, so it is done up to `given`.
    fn watermark(&self, mark: &Watermark, given: Position) -> Position {
        let (marked, count) = mark.read();
        let done = marked.map_or(self.done, |at| self.done.max(at));
        if count >= self.given { done.max(given) } else { done }
    }
}

impl Progress {
    /// Creates the progress of a session in which nothing was dispatched yet.
    pub(super) fn new(resume: &Resume) -> Self {
        let lanes = resume.positions().iter();
        let lanes = lanes.map(|done| LaneProgress { done: *done, given: 0, unsent: 0 }).collect();
        let marks = resume.positions().iter().map(|_| Watermark::default()).collect();
        let given = resume.lowest();
        Self {
            inside: Mutex::new(ProgressState { given, before: given, lanes, read_bytes: 0 }),
            marks,
        }
    }

    /// Notes that every record up to `to` is dispatched, `counts` of them to each lane. The records
    /// of a lane have arrived once [`Progress::note_sent`] is called.
    pub(super) fn note_dispatched(&self, to: Position, counts: impl Iterator<Item = usize>) {
        let mut inside = self.lock();
        let before = inside.given;
        inside.before = before;
        inside.given = before.max(to);
        for ((lane, mark), count) in inside.lanes.iter_mut().zip(&self.marks).zip(counts) {
            // The watermark of an idle lane must not fall back when it gets work again.
            lane.done = lane.watermark(mark, before);
            lane.given += count as u64;
            lane.unsent = count as u64;
        }
    }

    /// Notes that a lane has received its records of the last dispatch.
    pub(super) fn note_sent(&self, lane: usize) {
        self.lock().lanes[lane].unsent = 0;
    }

    /// Withdraws records that were lost on their way because the task that sent them was dropped.
    /// Returns the position up to which each lane has received its records. Watermarks do not fall
    /// back.
    pub(super) fn undo_dispatch(&self) -> Vec<Position> {
        let mut inside = self.lock();
        let ProgressState { given, before, lanes, .. } = &mut *inside;
        let whole = *given;
        if lanes.iter().any(|lane| lane.unsent > 0) {
            *given = *before;
        }
        let lanes = lanes.iter_mut().zip(&self.marks);
        let has = lanes.map(|(lane, mark)| match std::mem::take(&mut lane.unsent) {
            0 => {
                // The row may hold this position by now, and accepts no earlier one.
                lane.done = lane.watermark(mark, whole);
                whole
            }
            unsent => {
                lane.given = lane.given.saturating_sub(unsent);
                *before
            }
        });
        has.collect()
    }

    /// Notes that a lane is done up to `at` because of another session.
    pub(super) fn catch_up(&self, lane: usize, at: Position) {
        let mut inside = self.lock();
        let lane = &mut inside.lanes[lane];
        lane.done = lane.done.max(at);
    }

    /// Returns the position up to which a lane is done.
    pub(super) fn done_up_to(&self, lane: usize) -> Position {
        let inside = self.lock();
        inside.lanes[lane].watermark(&self.marks[lane], inside.given)
    }

    /// Counts bytes of records that were read.
    pub(super) fn read(&self, bytes: usize) {
        self.lock().read_bytes += bytes as u64;
    }

    /// Returns the bytes of records read since the last call.
    pub(super) fn take_read_bytes(&self) -> u64 {
        std::mem::take(&mut self.lock().read_bytes)
    }

    /// Notes that the next `count` records of a lane are done, the last of them at `last`. Only the
    /// lane's own task calls this.
    #[inline]
    pub(super) fn done(&self, lane: usize, last: (SequenceNumber, u64), count: usize) {
        let (sequence, sub) = last;
        self.marks[lane].advance(sequence, sub, count);
    }

    fn watermarks(&self, inside: &ProgressState) -> Vec<Position> {
        let lanes = inside.lanes.iter().zip(&self.marks);
        lanes.map(|(lane, mark)| lane.watermark(mark, inside.given)).collect()
    }

    /// Returns the checkpoint of the shard, as a row of this layout can hold it.
    pub(super) fn checkpoint(&self, layout: Layout) -> Checkpoint {
        let inside = self.lock();
        let checkpoint =
            Checkpoint::of_lanes(self.watermarks(&inside)).expect("a shard has at least one lane");
        match layout {
            Layout::Native => checkpoint,
            Layout::Kcl => Checkpoint::at(checkpoint.lowest()),
        }
    }

    /// Returns the checkpoint of the shard once `lane` is done up to `last`.
    pub(super) fn checkpoint_after(&self, lane: usize, last: Position) -> Checkpoint {
        let inside = self.lock();
        let mut lanes = self.watermarks(&inside);
        lanes[lane] = lanes[lane].max(last);
        Checkpoint::of_lanes(lanes).expect("a shard has at least one lane")
    }

    /// Returns the position up to which every record was dispatched to its lane.
    pub(super) fn dispatched_up_to(&self) -> Position {
        self.lock().given
    }

    /// Returns the number of lanes.
    pub(super) fn lanes(&self) -> usize {
        self.lock().lanes.len()
    }

    /// Returns the number of records that were dispatched and are not done.
    pub(super) fn open(&self) -> u64 {
        let inside = self.lock();
        let lanes = inside.lanes.iter().zip(&self.marks);
        lanes.map(|(lane, mark)| lane.given.saturating_sub(mark.read().1)).sum()
    }

    fn lock(&self) -> MutexGuard<'_, ProgressState> {
        // Each change is a few plain assignments, so a panic leaves no inconsistent state.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn number(low: u64) -> (SequenceNumber, u64) {
        (SequenceNumber::from_limbs(0, 0, low).unwrap(), 0)
    }

    fn at(low: u64) -> Position {
        Position::At { sequence: number(low).0, sub: 0 }
    }

    fn check(progress: &Progress, want: &[Position]) {
        assert_eq!(progress.checkpoint(Layout::Native).lanes(), want);
        let lowest = *want.iter().min().unwrap();
        assert_eq!(progress.checkpoint(Layout::Kcl), lowest);
    }

    #[test]
    fn a_checkpoint_never_passes_an_open_record_of_its_lane() {
        let progress = Progress::new(&Resume::of(&Checkpoint::at(at(1)), 2));
        check(&progress, &[at(1), at(1)]);
        progress.note_dispatched(at(9), [2, 1].into_iter());
        check(&progress, &[at(1), at(1)]);
        // The second lane has done its only record, so it counts as done up to the last dispatched
        // record.
        progress.done(1, number(4), 1);
        check(&progress, &[at(1), at(9)]);
        progress.done(0, number(3), 1);
        check(&progress, &[at(3), at(9)]);
        progress.note_dispatched(at(12), [0, 1].into_iter());
        check(&progress, &[at(3), at(9)]);
        progress.done(0, number(8), 1);
        progress.done(1, number(12), 1);
        check(&progress, &[at(12), at(12)]);
        assert_eq!(progress.open(), 0);
    }

    #[test]
    fn what_is_lost_on_its_way_counts_as_never_given() {
        let progress = Progress::new(&Resume::of(&Checkpoint::at(at(1)), 3));
        progress.note_dispatched(at(4), [1, 1, 0].into_iter());
        (0..3).for_each(|lane| progress.note_sent(lane));
        assert_eq!(progress.undo_dispatch(), [at(4); 3], "everything has arrived");
        progress.note_dispatched(at(9), [2, 1, 1].into_iter());
        progress.note_sent(0);
        // The first lane has its records; those of the others are dispatched again.
        assert_eq!(progress.undo_dispatch(), [at(9), at(4), at(4)]);
        assert_eq!((progress.dispatched_up_to(), progress.open()), (at(4), 4));
        progress.done(0, number(8), 3);
        progress.done(1, number(3), 1);
        check(&progress, &[at(8), at(4), at(4)]);
        progress.note_dispatched(at(9), [0, 1, 1].into_iter());
        check(&progress, &[at(9), at(4), at(4)]);
    }

    #[test]
    fn a_lane_without_a_part_in_what_is_lost_on_its_way_stays_where_it_stood() {
        let progress = Progress::new(&Resume::of(&Checkpoint::at(at(1)), 3));
        progress.note_dispatched(at(9), [0, 1, 1].into_iter());
        progress.note_sent(0);
        progress.note_sent(1);
        progress.done(1, number(5), 1);
        check(&progress, &[at(9), at(9), at(1)]);
        assert_eq!(progress.undo_dispatch(), [at(9), at(9), at(1)]);
        // The row may hold this position, and accepts no earlier one.
        check(&progress, &[at(9), at(9), at(1)]);
        progress.note_dispatched(at(7), [0, 0, 1].into_iter());
        progress.done(2, number(7), 1);
        check(&progress, &[at(9), at(9), at(7)]);
    }

    /// One thread dispatches, one handles, and this one reads: everything it sees as done was
    /// handled before.
    #[test]
    fn a_checkpoint_that_is_made_beside_a_lane_never_passes_what_the_lane_has_handled() {
        const RECORDS: u64 = 20_000;
        let progress = Progress::new(&Resume::of(&Checkpoint::at(at(0)), 1));
        let handled = AtomicU64::new(0);
        let (way, lane) = std::sync::mpsc::sync_channel::<u64>(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for low in 1..=RECORDS {
                    progress.note_dispatched(at(low), std::iter::once(1));
                    way.send(low).unwrap();
                    progress.note_sent(0);
                }
                drop(way);
            });
            scope.spawn(|| {
                for low in lane {
                    handled.store(low, Ordering::Release);
                    progress.done(0, number(low), 1);
                }
            });
            let mut before = at(0);
            while before < at(RECORDS) {
                let seen = progress.checkpoint(Layout::Native).lowest();
                let by = at(handled.load(Ordering::Acquire));
                assert!(before <= seen && seen <= by, "{seen} after {before}, handled up to {by}");
                before = seen;
            }
        });
        assert_eq!(progress.open(), 0);
    }

    #[test]
    fn a_lane_that_was_ahead_stays_ahead() {
        let row = Checkpoint::of_lanes(vec![at(3), at(8)]).unwrap();
        let progress = Progress::new(&Resume::of(&row, 2));
        check(&progress, &[at(3), at(8)]);
        progress.note_dispatched(at(5), [1, 0].into_iter());
        progress.done(0, number(5), 1);
        check(&progress, &[at(5), at(8)]);
    }
}
