//! When to look at the table: with each poll, soon after something was heard, and again and again
//! while a transaction holds rows up.
//!
//! ```text
//! heard ─► a look ─┬─ the horizon moved ─► read
//!          ▲       └─ it stands ─► a pause, twice as long each time, up to the poll ─┐
//!          └─────────────────────────────────────────────────────────────────────────┘
//! ```

/// After a look that took everything: how long rows gather before the next.
pub(crate) const GATHER_MS: u64 = 5;
/// The first wait for a horizon that holds rows up; it doubles up to the poll.
const HELD_MS: u64 = 5;
/// After so many looks with that pause a transaction has been running for long. Shorter ones are
/// everyday, and nobody wants to hear of each.
const HELD_LOOKS: u32 = 10;

/// When to look.
#[derive(Debug)]
pub(crate) struct PollSchedule {
    /// The pause between two looks that nothing asks for.
    poll_ms: u64,
    /// When to look without being told.
    at_ms: u64,
    /// When it looked last.
    looked_ms: u64,
    /// Whether rows are there that were not settled yet.
    expecting: bool,
    /// The wait for the horizon that holds them up.
    held_ms: u64,
    /// How many looks with the longest pause have found that horizon unmoved.
    unmoved: u32,
}

impl PollSchedule {
    pub(crate) fn new(poll_ms: u64) -> Self {
        Self { poll_ms, at_ms: 0, looked_ms: 0, expecting: false, held_ms: HELD_MS, unmoved: 0 }
    }

    /// When the next look is due.
    pub(crate) fn at_ms(&self) -> u64 {
        self.at_ms
    }

    /// Whether it is due.
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        now_ms >= self.at_ms
    }

    /// Somebody said that rows came.
    pub(crate) fn note_notification(&mut self) {
        self.expecting = true;
        self.at_ms = self.at_ms.min(self.looked_ms + GATHER_MS);
    }

    /// Rows were met that are not settled.
    pub(crate) fn note_held_up(&mut self, now_ms: u64) {
        self.expecting = true;
        self.at_ms = self.at_ms.min(now_ms + HELD_MS);
    }

    /// A look begins.
    pub(crate) fn note_poll(&mut self, now_ms: u64) {
        self.looked_ms = now_ms;
        self.at_ms = now_ms + self.poll_ms;
    }

    /// It found that the horizon has moved.
    pub(crate) fn note_horizon_moved(&mut self) {
        (self.expecting, self.held_ms, self.unmoved) = (false, HELD_MS, 0);
    }

    /// It found that the horizon stands, and whether `rows` wait behind it: whoever holds them up may
    /// take longer. Says once that this has lasted for long.
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

    /// The pauses and the words of so many looks that find rows held up.
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
