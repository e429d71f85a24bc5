//! Validation of the checkpoints that an application makes, by KCL's rules.

use crate::position::Position;

/// Bounds for checkpoints: not before the last one, and not after the last delivered record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointRules {
    /// Last checkpoint that was made.
    last: Position,
    /// Position found in the row. It can be ahead of `last` if a checkpoint with an unknown result
    /// was applied.
    held: Position,
    /// Last delivered record.
    largest: Position,
    /// True if the shard has no more records.
    at_end: bool,
    /// True if the end of the shard was checkpointed.
    ended: bool,
}

/// Action that a valid checkpoint requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckpointStep {
    /// Nothing to write: the row is at least as far.
    Same,
    /// Write this position.
    To(Position),
}

/// Error: the checkpoint is out of range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "cannot checkpoint {asked}: it must be between the last checkpoint, {last}, and the last \
     delivered record, {largest}"
)]
pub struct CheckpointOutOfRange {
    /// Requested checkpoint.
    pub asked: Position,
    /// Last checkpoint that was made.
    pub last: Position,
    /// Last delivered record.
    pub largest: Position,
}

impl From<Position> for CheckpointRules {
    /// Creates rules for a shard that is processed up to `at`, with nothing delivered yet.
    fn from(at: Position) -> Self {
        Self { last: at, held: at, largest: at, at_end: false, ended: false }
    }
}

impl CheckpointRules {
    /// Returns the last checkpoint that was made.
    pub fn last(&self) -> Position {
        self.last
    }

    /// Returns the position in the row, as far as it is known.
    pub fn stored(&self) -> Position {
        self.held
    }

    /// Notes that the row holds a checkpoint. Returns true if it is ahead of the known one.
    pub fn note_stored(&mut self, at: Position) -> bool {
        let news = !matches!(at, Position::Latest | Position::AtTimestamp(_)) && self.held < at;
        if news {
            self.held = at;
        }
        news
    }

    /// Returns the position of the last delivered record.
    pub fn largest(&self) -> Position {
        self.largest
    }

    /// Notes that everything up to `to` is delivered.
    pub fn note_delivered(&mut self, to: Position) {
        self.largest = self.largest.max(to);
    }

    /// Notes that the shard has no more records.
    pub fn at_end(&mut self) {
        self.at_end = true;
    }

    /// Returns the action for a checkpoint at `asked`. At the end of the shard `SHARD_END` stands
    /// for everything delivered. The end itself is written by the library, after the rows of the
    /// children.
    ///
    /// Java compares sequence numbers only. This function also rejects every other position without
    /// a record, because `LATEST` would make the next owner skip unprocessed records.
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

    /// Returns true if everything delivered has been checkpointed since the end of the shard was
    /// reached.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the error for a checkpoint at `asked`.
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
