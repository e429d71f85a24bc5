//! Reading position in a shard, with KCL's total order and KCL's text form.

use crate::sequence::SequenceNumber;
use std::fmt;
use std::str::FromStr;

const AT_TIMESTAMP: &str = "AT_TIMESTAMP";
const TRIM_HORIZON: &str = "TRIM_HORIZON";
const LATEST: &str = "LATEST";
const SHARD_END: &str = "SHARD_END";

/// Start position of an application on a stream that it has never read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum StartPosition {
    /// The oldest record that the stream still holds.
    TrimHorizon,
    /// Records that arrive from now on.
    Latest,
    /// The first record that arrived at or after this time, in milliseconds since the Unix epoch.
    AtTimestamp(u64),
}

impl From<StartPosition> for Position {
    fn from(start: StartPosition) -> Self {
        match start {
            StartPosition::TrimHorizon => Self::TrimHorizon,
            StartPosition::Latest => Self::Latest,
            StartPosition::AtTimestamp(ms) => Self::AtTimestamp(ms),
        }
    }
}

/// Reading position in a shard: the checkpoint of a lease row.
///
/// The order of the variants is KCL's order of checkpoints. Every sentinel sorts before every
/// sequence number, except the shard's end, which sorts after all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Position {
    /// Before the first record that arrived at or after this time, in milliseconds since the Unix
    /// epoch.
    AtTimestamp(u64),
    /// Before the oldest record that the shard still holds.
    TrimHorizon,
    /// Before the next record to arrive.
    Latest,
    /// Processed up to and including this user record.
    At {
        /// Sequence number of the Kinesis record that carried the last processed user record.
        sequence: SequenceNumber,
        /// Index of that user record in the aggregate; 0 for a plain record.
        sub: u64,
    },
    /// Every record of the shard is processed, and no more can arrive.
    ShardEnd,
}

/// Reason why a row's checkpoint is not a position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParsePositionError {
    /// The text is neither a sentinel nor a number.
    #[error(
        "{0:?} is not a checkpoint: it must be a sequence number, TRIM_HORIZON, LATEST, \
         AT_TIMESTAMP or SHARD_END"
    )]
    Unreadable(String),
    /// The row contains `AT_TIMESTAMP`, which takes its time from the application's start position.
    #[error(
        "checkpoint \"AT_TIMESTAMP\" contains no time, and the start position is {0:?}: start this \
         application with the timestamp that its rows were created with"
    )]
    NoTimestamp(StartPosition),
}

impl Position {
    /// Returns the checkpoint string and sub-sequence number of KCL's lease row.
    ///
    /// KCL's row does not store the time of `AT_TIMESTAMP`; each worker takes it from its own start
    /// position.
    pub fn to_row(self) -> (String, u64) {
        match self {
            Self::AtTimestamp(_) => (AT_TIMESTAMP.into(), 0),
            Self::TrimHorizon => (TRIM_HORIZON.into(), 0),
            Self::Latest => (LATEST.into(), 0),
            Self::At { sequence, sub } => (sequence.to_string(), sub),
            Self::ShardEnd => (SHARD_END.into(), 0),
        }
    }

    /// Parses the values that [`Position::to_row`] returns. `start` provides the time of
    /// `AT_TIMESTAMP`.
    pub fn from_row(
        checkpoint: &str,
        sub: u64,
        start: StartPosition,
    ) -> Result<Self, ParsePositionError> {
        match (checkpoint, start) {
            (TRIM_HORIZON, _) => Ok(Self::TrimHorizon),
            (LATEST, _) => Ok(Self::Latest),
            (SHARD_END, _) => Ok(Self::ShardEnd),
            (AT_TIMESTAMP, StartPosition::AtTimestamp(ms)) => Ok(Self::AtTimestamp(ms)),
            (AT_TIMESTAMP, other) => Err(ParsePositionError::NoTimestamp(other)),
            (digits, _) => match digits.parse() {
                Ok(sequence) => Ok(Self::At { sequence, sub }),
                Err(_) => Err(ParsePositionError::Unreadable(digits.chars().take(80).collect())),
            },
        }
    }

    /// Returns true if every record of the shard is processed.
    pub fn is_shard_end(self) -> bool {
        self == Self::ShardEnd
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtTimestamp(ms) => write!(f, "{AT_TIMESTAMP}({ms})"),
            Self::TrimHorizon => f.pad(TRIM_HORIZON),
            Self::Latest => f.pad(LATEST),
            Self::At { sequence, sub } => write!(f, "{sequence}/{sub}"),
            Self::ShardEnd => f.pad(SHARD_END),
        }
    }
}

/// Parses the text form that [`Position`]'s `Display` writes. It is lossless, including the time of
/// `AT_TIMESTAMP` and the sub-sequence number.
impl FromStr for Position {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, ParsePositionError> {
        let unreadable = || ParsePositionError::Unreadable(text.chars().take(80).collect());
        let number = |digits: &str| {
            let plain = digits.bytes().all(|b| b.is_ascii_digit());
            digits.parse::<u64>().ok().filter(|_| plain).ok_or_else(unreadable)
        };
        if let Some(time) = text.strip_prefix(AT_TIMESTAMP) {
            let ms = time.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
            return Ok(Self::AtTimestamp(number(ms.ok_or_else(unreadable)?)?));
        }
        match (text, text.split_once('/')) {
            (TRIM_HORIZON, _) => Ok(Self::TrimHorizon),
            (LATEST, _) => Ok(Self::Latest),
            (SHARD_END, _) => Ok(Self::ShardEnd),
            (_, Some((sequence, sub))) => {
                let sequence = sequence.parse().map_err(|_| unreadable())?;
                Ok(Self::At { sequence, sub: number(sub)? })
            }
            (_, None) => Err(unreadable()),
        }
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(sequence: &str, sub: u64) -> Position {
        Position::At { sequence: sequence.parse().unwrap(), sub }
    }

    #[test]
    fn checkpoints_order_as_kcl_orders_them() {
        let ascending = [
            Position::AtTimestamp(0),
            Position::AtTimestamp(u64::MAX),
            Position::TrimHorizon,
            Position::Latest,
            at("0", 0),
            at("0", 1),
            // As text "9" would sort after "10".
            at("9", u64::MAX),
            at("10", 0),
            at("49590338271490256608559692538361571095921575989136588898", 0),
            Position::ShardEnd,
        ];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(a.cmp(b), i.cmp(&j), "{a} against {b}");
            }
        }
    }

    #[test]
    fn texts_that_are_no_checkpoints_are_refused_by_name() {
        for text in ["", "latest", "TRIM_HORIZON ", "-1", "00", "12a", "SHARD_END0"] {
            let error = Position::from_row(text, 0, StartPosition::Latest).unwrap_err();
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn texts_that_display_never_wrote_are_refused_by_name() {
        for text in ["", "12", "12/", "/0", "12/+1", "12/-1", "AT_TIMESTAMP", "AT_TIMESTAMP(+1)"] {
            let error = text.parse::<Position>().unwrap_err();
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn a_timestamp_comes_from_the_start_position() {
        let read = |start| Position::from_row(AT_TIMESTAMP, 0, start);
        assert_eq!(read(StartPosition::AtTimestamp(7)), Ok(Position::AtTimestamp(7)));
        for start in [StartPosition::Latest, StartPosition::TrimHorizon] {
            assert_eq!(read(start), Err(ParsePositionError::NoTimestamp(start)));
        }
    }

    proptest! {
        #[test]
        fn every_position_comes_back_from_its_row(which in 0..5, digits in "0|[1-9][0-9]{0,56}", number: u64) {
            let position = match which {
                0 => Position::AtTimestamp(number),
                1 => Position::TrimHorizon,
                2 => Position::Latest,
                3 => Position::ShardEnd,
                _ => at(&digits, number),
            };
            let (checkpoint, sub) = position.to_row();
            let back = Position::from_row(&checkpoint, sub, StartPosition::AtTimestamp(number));
            prop_assert_eq!(back, Ok(position));
            prop_assert_eq!(position.to_string().parse(), Ok(position));
        }
    }
}
