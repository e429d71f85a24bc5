//! Schedule of polls: at a fixed interval, soon after a notification, and repeatedly while a
//! transaction blocks rows.
//!
//! ```text
//! notification ─► poll ─┬─ horizon moved ─► read
//!                  ▲    └─ unchanged ─► pause, doubled each time up to the poll interval ─┐
//!                  └──────────────────────────────────────────────────────────────────────┘
//! ```

/// Minimum time between polls or dry reads, so that rows can accumulate.
pub(crate) const GATHER_MS: u64 = 5;
/// First pause for a horizon that blocks rows. It doubles up to the poll interval.
const HELD_MS: u64 = 5;
/// Number of polls at the longest pause after which a transaction counts as long-running. Shorter
/// transactions are normal and not worth an event.
const HELD_LOOKS: u32 = 10;

/// Schedule of polls.
#[derive(Debug)]
pub(crate) struct PollSchedule {
    /// Regular poll interval.
    poll_ms: u64,
    /// Time of the next poll.
    at_ms: u64,
    /// Time of the last poll.
    looked_ms: u64,
    /// True while rows are expected that were not settled yet.
    expecting: bool,
    /// Current pause for the horizon that blocks them.
    held_ms: u64,
    /// Number of polls at the longest pause that found the horizon unchanged.
    unmoved: u32,
}

impl PollSchedule {
    pub(crate) fn new(poll_ms: u64) -> Self {
        Self { poll_ms, at_ms: 0, looked_ms: 0, expecting: false, held_ms: HELD_MS, unmoved: 0 }
    }

    /// Returns the time of the next poll.
    pub(crate) fn at_ms(&self) -> u64 {
        self.at_ms
    }

    /// Returns true if a poll is due.
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        now_ms >= self.at_ms
    }

    /// Records a notification of new rows.
    pub(crate) fn note_notification(&mut self) {
        self.expecting = true;
        self.at_ms = self.at_ms.min(self.looked_ms + GATHER_MS);
    }

    /// Records that a read found rows that are not settled.
    pub(crate) fn note_held_up(&mut self, now_ms: u64) {
        self.expecting = true;
        self.at_ms = self.at_ms.min(now_ms + HELD_MS);
    }

    /// Records the start of a poll.
    pub(crate) fn note_poll(&mut self, now_ms: u64) {
        self.looked_ms = now_ms;
        self.at_ms = now_ms + self.poll_ms;
    }

    /// Records that the poll found the horizon moved.
    pub(crate) fn note_horizon_moved(&mut self) {
        (self.expecting, self.held_ms, self.unmoved) = (false, HELD_MS, 0);
    }

    /// Records that the poll found the horizon unchanged, and `rows` blocked by it. Returns true
    /// once, when this has lasted for [`HELD_LOOKS`] polls at the longest pause.
    pub(crate) fn note_horizon_unchanged(&mut self, now_ms: u64, rows: bool) -> bool {
        if !self.expecting && !rows {
            return false;
        }
        self.at_ms = now_ms + self.held_ms;
        if self.held_ms < self.poll_ms {
            self.held_ms = (self.held_ms * 2).min(self.poll_ms);
            self.unmoved = 0;
            self.expecting &= self.held_ms < self.poll_ms;
            return false;
        }
        self.unmoved = self.unmoved.saturating_add(1);
        rows && self.unmoved == HELD_LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the pauses of `count` polls that find rows blocked, and how often that was reported.
    fn held(looks: &mut PollSchedule, count: usize) -> (Vec<u64>, usize) {
        let mut told = 0;
        let mut pause = || {
            let now_ms = looks.at_ms();
            looks.note_poll(now_ms);
            told += usize::from(looks.note_horizon_unchanged(now_ms, true));
            looks.at_ms() - now_ms
        };
        let pauses = (0..count).map(|_| pause()).collect();
        (pauses, told)
    }

    #[test]
    fn pauses_grow_up_to_the_poll_while_rows_are_held_up_and_that_is_told_once() {
        let mut looks = PollSchedule::new(100);
        assert_eq!(held(&mut looks, 7), (vec![5, 10, 20, 40, 80, 100, 100], 0));
        assert_eq!(held(&mut looks, 7).1, 0, "that is everyday");
        assert_eq!(held(&mut looks, 20).1, 1);
        looks.note_horizon_moved();
        assert_eq!(held(&mut looks, 6), (vec![5, 10, 20, 40, 80, 100], 0));
        assert_eq!(held(&mut looks, 20).1, 1, "it is another one");
    }

    #[test]
    fn whoever_hears_looks_soon_and_not_for_ever() {
        let mut looks = PollSchedule::new(100);
        looks.note_poll(50);
        assert_eq!((looks.at_ms(), looks.note_horizon_unchanged(50, false)), (150, false));
        assert_eq!(looks.at_ms(), 150, "nothing is expected");
        looks.note_notification();
        assert_eq!(looks.at_ms(), 50 + GATHER_MS);
        looks.note_poll(60);
        looks.note_held_up(60);
        assert_eq!(looks.at_ms(), 60 + HELD_MS);
        let mut looked = 0;
        while looks.at_ms() < 1_000 {
            looked += 1;
            let now_ms = looks.at_ms();
            looks.note_poll(now_ms);
            assert!(!looks.note_horizon_unchanged(now_ms, false));
        }
        assert!(looked < 16, "what was heard and never came is looked for with the poll: {looked}");
    }
}
