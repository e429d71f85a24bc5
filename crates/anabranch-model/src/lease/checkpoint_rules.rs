//! Which checkpoints the user of a shard may make, by KCL's rules.

use crate::position::Position;

/// Which checkpoints may be made: not before the last one, and not behind what was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointRules {
    /// The last checkpoint that was made.
    last: Position,
    /// What the row was found to hold, where that is more: one was given up, and landed.
    held: Position,
    /// The last record that was given.
    largest: Position,
    /// Whether the shard has no more records.
    at_end: bool,
    /// Whether its end was checkpointed.
    ended: bool,
}

/// What a checkpoint that may be made takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckpointStep {
    /// Nothing: the row holds as much.
    Same,
    /// This is to be written.
    To(Position),
}

/// A checkpoint that may not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{asked} can't be checkpointed: it has to lie between the last checkpoint, {last}, and the last \
     record given, {largest}"
)]
pub struct CheckpointOutOfRange {
    /// What was asked for.
    pub asked: Position,
    /// The last checkpoint that was made.
    pub last: Position,
    /// The last record that was given.
    pub largest: Position,
}

impl From<Position> for CheckpointRules {
    /// The shard is done up to `at`, and nothing was given yet.
    fn from(at: Position) -> Self {
        Self { last: at, held: at, largest: at, at_end: false, ended: false }
    }
}

impl CheckpointRules {
    /// The last checkpoint that was made.
    pub fn last(&self) -> Position {
        self.last
    }

    /// What the row holds, as far as that is known.
    pub fn stored(&self) -> Position {
        self.held
    }

    /// Notes that the row holds a checkpoint. Returns whether that is news.
    pub fn note_stored(&mut self, at: Position) -> bool {
        let news = !matches!(at, Position::Latest | Position::AtTimestamp(_)) && self.held < at;
        if news {
            self.held = at;
        }
        news
    }

    /// The last record that was given.
    pub fn largest(&self) -> Position {
        self.largest
    }

    /// Notes that everything up to `to` is given to the user.
    pub fn note_delivered(&mut self, to: Position) {
        self.largest = self.largest.max(to);
    }

    /// Notes that the shard has no more records.
    pub fn at_end(&mut self) {
        self.at_end = true;
    }

    /// What a checkpoint at `asked` takes. At the end of the shard `SHARD_END` stands for all that
    /// was given; the end itself is the library's to write, behind the rows of the children.
    ///
    /// Other than Java, which compares numbers alone, this takes no other place without a record:
    /// `LATEST` would have the next owner skip what nobody has done.
    pub fn check(&self, asked: Position) -> Result<CheckpointStep, CheckpointOutOfRange> {
        let to = self.effective_target(asked);
        if to == self.last {
            Ok(CheckpointStep::Same)
        } else if matches!(to, Position::At { .. }) && self.last < to && to <= self.largest {
            Ok(if to <= self.held { CheckpointStep::Same } else { CheckpointStep::To(to) })
        } else {
            Err(self.out_of_range(asked))
        }
    }

    /// Notes that a checkpoint was made.
    pub fn note_checkpoint(&mut self, asked: Position) {
        let to = self.effective_target(asked);
        self.last = self.last.max(to);
        self.held = self.held.max(self.last);
        self.ended |= self.at_end && to == self.largest;
    }

    /// Whether all that was given is checkpointed, since the end of the shard was told.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Why `asked` may not be checkpointed.
    pub fn out_of_range(&self, asked: Position) -> CheckpointOutOfRange {
        CheckpointOutOfRange { asked, last: self.last, largest: self.largest }
    }

    fn effective_target(&self, asked: Position) -> Position {
        if self.at_end && asked.is_shard_end() { self.largest } else { asked }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Position::{Latest, ShardEnd, TrimHorizon};

    fn at(low: u64, sub: u64) -> Position {
        let sequence = crate::sequence::SequenceNumber::from_limbs(0, 0, low).unwrap();
        Position::At { sequence, sub }
    }

    #[test]
    fn a_checkpoint_lies_between_the_last_one_and_what_was_given() {
        let mut fresh = CheckpointRules::from(TrimHorizon);
        let nothing_given = fresh;
        fresh.note_delivered(at(9, 2));
        let mut at_latest = CheckpointRules::from(Latest);
        at_latest.note_delivered(at(9, 2));
        let mut moved = fresh;
        moved.note_checkpoint(at(5, 1));
        let mut ending = moved;
        ending.at_end();
        for (state, asked, want) in [
            (nothing_given, TrimHorizon, Some(CheckpointStep::Same)),
            (nothing_given, at(1, 0), None),
            (fresh, at(1, 0), Some(CheckpointStep::To(at(1, 0)))),
            (fresh, at(9, 2), Some(CheckpointStep::To(at(9, 2)))),
            (fresh, at(9, 3), None),
            (fresh, Latest, None),
            (at_latest, Latest, Some(CheckpointStep::Same)),
            (at_latest, TrimHorizon, None),
            (at_latest, at(9, 2), Some(CheckpointStep::To(at(9, 2)))),
            (fresh, ShardEnd, None),
            (moved, at(5, 0), None),
            (moved, at(5, 1), Some(CheckpointStep::Same)),
            (moved, at(5, 2), Some(CheckpointStep::To(at(5, 2)))),
            (moved, TrimHorizon, None),
            (ending, ShardEnd, Some(CheckpointStep::To(at(9, 2)))),
            (ending, at(9, 2), Some(CheckpointStep::To(at(9, 2)))),
            (ending, at(9, 3), None),
        ] {
            assert_eq!(state.check(asked).ok(), want, "{asked} in {state:?}");
        }
    }

    #[test]
    fn a_shard_has_ended_once_all_is_checkpointed_since_its_end_was_told() {
        let mut marks = CheckpointRules::from(TrimHorizon);
        marks.note_delivered(at(9, 0));
        marks.note_checkpoint(at(9, 0));
        assert!(!marks.has_ended(), "nobody has told");
        marks.at_end();
        assert!(!marks.has_ended(), "checkpoints made before don't count");
        for (asked, want) in [(at(9, 0), true), (ShardEnd, true)] {
            let mut marks = marks;
            marks.note_checkpoint(asked);
            assert_eq!(marks.has_ended(), want, "{asked}");
        }
        let mut behind = CheckpointRules::from(TrimHorizon);
        behind.note_delivered(at(9, 0));
        behind.at_end();
        behind.note_checkpoint(at(8, 0));
        assert!(!behind.has_ended());
    }

    #[test]
    fn what_the_row_holds_already_takes_nothing_and_the_range_stays_as_it_was() {
        let mut marks = CheckpointRules::from(at(50, 0));
        marks.note_delivered(at(120, 0));
        assert!(!marks.note_stored(at(50, 0)) && !marks.note_stored(Position::AtTimestamp(7)));
        assert!(marks.note_stored(at(100, 0)) && !marks.note_stored(at(100, 0)));
        for (asked, want) in [
            (at(49, 0), None),
            (at(80, 0), Some(CheckpointStep::Same)),
            (at(100, 0), Some(CheckpointStep::Same)),
            (at(101, 0), Some(CheckpointStep::To(at(101, 0)))),
            (at(121, 0), None),
        ] {
            assert_eq!(marks.check(asked).ok(), want, "{asked}");
        }
        marks.note_checkpoint(at(80, 0));
        assert_eq!((marks.last(), marks.stored()), (at(80, 0), at(100, 0)));
        assert_eq!(marks.check(at(79, 0)).unwrap_err().last, at(80, 0), "none goes back");
        marks.note_checkpoint(at(110, 0));
        assert_eq!(marks.stored(), at(110, 0));
    }

    #[test]
    fn a_refused_checkpoint_names_the_range() {
        let mut marks = CheckpointRules::from(at(3, 0));
        marks.note_delivered(at(7, 0));
        let said = marks.check(at(8, 0)).unwrap_err().to_string();
        for part in ["8/0", "3/0", "7/0"] {
            assert!(said.contains(part), "{said}");
        }
    }
}
