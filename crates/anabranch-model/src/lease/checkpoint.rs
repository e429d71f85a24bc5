//! Progress of a shard: one position per lane.

use crate::position::{ParsePositionError, Position};
use bytes::Bytes;
use std::fmt;
use std::str::FromStr;

/// Separator of lanes in the text form.
const LANE_SEPARATOR: &str = " | ";

/// Position up to which a shard is processed. Most shards have one lane. Several lanes advance
/// independently, so that a slow key causes no duplicates in the others.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Checkpoint {
    /// One position per lane, in lane order; never empty.
    lanes: Vec<Position>,
}

impl Checkpoint {
    /// Creates a checkpoint of one lane.
    pub fn at(position: Position) -> Self {
        Self { lanes: vec![position] }
    }

    /// Creates a checkpoint of several lanes, or returns `None` if `lanes` is empty.
    pub fn of_lanes(lanes: Vec<Position>) -> Option<Self> {
        if lanes.is_empty() { None } else { Some(Self { lanes }) }
    }

    /// Returns the positions, in lane order.
    pub fn lanes(&self) -> &[Position] {
        &self.lanes
    }

    /// Returns the lowest position, from which reading resumes.
    pub fn lowest(&self) -> Position {
        self.lanes.iter().copied().min().unwrap_or(Position::TrimHorizon)
    }

    /// Returns true if every record of the shard is processed.
    pub fn is_shard_end(&self) -> bool {
        self.lowest().is_shard_end()
    }

    /// Returns true if all lanes are at one position. Only then can the number of lanes change.
    pub fn is_level(&self) -> bool {
        self.lanes.iter().all(|lane| *lane == self.lanes[0])
    }

    /// Returns true if `next` may replace this checkpoint: no lane goes back. If the number of
    /// lanes changes, all new lanes must be at or after the furthest old one. `SHARD_END` may
    /// follow any checkpoint, and `LATEST` may become the time that it stands for.
    pub fn may_become(&self, next: &Self) -> bool {
        if next.is_shard_end() {
            true
        } else if self.lanes.len() == next.lanes.len() {
            self.lanes.iter().zip(&next.lanes).all(|(old, new)| old <= new || fixes(*old, *new))
        } else {
            self.lanes.iter().all(|old| *old <= next.lowest())
        }
    }
}

/// Returns true if `new` replaces `LATEST` with a timestamp.
fn fixes(old: Position, new: Position) -> bool {
    old == Position::Latest && matches!(new, Position::AtTimestamp(_))
}

impl From<Position> for Checkpoint {
    fn from(position: Position) -> Self {
        Self::at(position)
    }
}

impl PartialEq<Position> for Checkpoint {
    fn eq(&self, position: &Position) -> bool {
        self.lanes == [*position]
    }
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, lane) in self.lanes.iter().enumerate() {
            write!(f, "{}{lane}", if i == 0 { "" } else { LANE_SEPARATOR })?;
        }
        Ok(())
    }
}

/// Parses the text form that [`Checkpoint`]'s `Display` writes.
impl FromStr for Checkpoint {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, ParsePositionError> {
        let lanes = text.split(LANE_SEPARATOR).map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self { lanes })
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A checkpoint that was prepared but not yet made: KCL's two-phase checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct PendingCheckpoint {
    /// Position of the prepared checkpoint.
    pub position: Position,
    /// Application state that the next owner of the lease receives with it.
    pub state: Option<Bytes>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use Position::{Latest, ShardEnd, TrimHorizon};

    fn at(low: u64) -> Position {
        let sequence = crate::sequence::SequenceNumber::from_limbs(0, 0, low).unwrap();
        Position::At { sequence, sub: 0 }
    }

    fn lanes(of: &[Position]) -> Checkpoint {
        Checkpoint::of_lanes(of.to_vec()).unwrap()
    }

    #[test]
    fn no_lane_goes_back_and_no_record_does_where_their_number_changes() {
        for (old, new, may) in [
            (vec![TrimHorizon], vec![at(1)], true),
            (vec![Position::AtTimestamp(9)], vec![at(1)], true),
            (vec![Latest], vec![Position::AtTimestamp(9)], true),
            (vec![TrimHorizon], vec![Position::AtTimestamp(9)], false),
            (vec![at(1)], vec![at(1)], true),
            (vec![at(2)], vec![at(1)], false),
            (vec![at(1)], vec![Latest], false),
            (vec![at(1), at(5)], vec![at(2), at(5)], true),
            (vec![at(1), at(5)], vec![at(9), at(4)], false),
            (vec![at(1), at(5)], vec![at(4)], false),
            (vec![at(1), at(5)], vec![at(5)], true),
            (vec![at(1), at(5)], vec![at(6), at(5), at(9)], true),
            (vec![at(1), at(5)], vec![at(6), at(4), at(9)], false),
            (vec![at(5), at(5)], vec![at(5)], true),
            (vec![at(5)], vec![at(5), at(6)], true),
            (vec![at(5)], vec![at(4), at(6)], false),
            (vec![at(1), at(5)], vec![ShardEnd], true),
            (vec![ShardEnd], vec![at(1)], false),
            (vec![ShardEnd], vec![ShardEnd], true),
        ] {
            assert_eq!(lanes(&old).may_become(&lanes(&new)), may, "{old:?} to {new:?}");
        }
    }

    #[test]
    fn a_checkpoint_comes_back_from_its_text() {
        for of in [vec![TrimHorizon], vec![Position::AtTimestamp(9), Latest], vec![at(1), at(2)]] {
            let checkpoint = lanes(&of);
            assert_eq!(checkpoint.to_string().parse(), Ok(checkpoint));
        }
        for text in ["", " | ", "LATEST | ", "LATEST|LATEST"] {
            assert!(text.parse::<Checkpoint>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn reading_resumes_at_the_lowest_lane() {
        assert_eq!(lanes(&[at(7), at(3), at(5)]).lowest(), at(3));
        assert!(!lanes(&[ShardEnd, at(3)]).is_shard_end());
        assert!(lanes(&[ShardEnd, ShardEnd]).is_shard_end());
        assert_eq!(Checkpoint::of_lanes(vec![]), None);
    }
}
