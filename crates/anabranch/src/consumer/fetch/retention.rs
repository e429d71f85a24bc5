//! Detection of records that expired before they were read.
//!
//! The service trims records older than the stream's retention, read or not, without notice: the
//! next read continues after the gap. Two observations reveal it:
//!
//! | observation                              | reason                                            |
//! |------------------------------------------|---------------------------------------------------|
//! | the records read next have waited longer | the last reply reports how far it was behind, and |
//! | than the retention                       | the worker's clock how long ago that was          |
//! | the record at which reading begins is    | a checkpoint's record is read again; if it is     |
//! | gone, while later records exist          | gone, it expired, and so did all up to the next   |

use crate::stream::api::ReadFrom;
use anabranch_model::position::Position;
use anabranch_model::record::Record;
use anabranch_model::sequence::SequenceNumber;

/// Tracks how far a shard was read, to detect expired records.
#[derive(Clone, Debug)]
pub(super) struct RetentionTracker {
    /// Position up to which everything was read.
    read: Position,
    /// Record with which the next reply begins, unless it has expired.
    begins: Option<SequenceNumber>,
    /// Time at or before the last reply, by the worker's clock, and the distance of that reply from
    /// the tip of the shard; both in milliseconds.
    last: Option<(u64, u64)>,
    /// Retention of the stream in milliseconds, once known.
    retention_ms: Option<u64>,
}

/// Records that expired before they were read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RetentionGap {
    /// Position after which the expired records were.
    pub(super) after: Position,
    /// First record that still exists, if any.
    pub(super) to: Option<Position>,
}

impl RetentionTracker {
    /// Starts tracking at this position.
    pub(super) fn new(from: ReadFrom) -> Self {
        let (read, begins) = match from {
            ReadFrom::At(sequence) => (at(sequence), Some(sequence)),
            ReadFrom::After(sequence) => (at(sequence), None),
            ReadFrom::AtTimestamp(ms) => (Position::AtTimestamp(ms), None),
            ReadFrom::TrimHorizon => (Position::TrimHorizon, None),
            ReadFrom::Latest => (Position::Latest, None),
        };
        Self { read, begins, last: None, retention_ms: None }
    }

    /// Returns the time in milliseconds that the records requested now may have waited in the
    /// stream; `None` before the first reply.
    pub(super) fn waited_ms(&self, now_ms: u64) -> Option<u64> {
        let (replied_ms, behind_ms) = self.last?;
        Some(now_ms.saturating_sub(replied_ms).saturating_add(behind_ms))
    }

    /// Sets the retention of the stream. `None` keeps the last known value.
    pub(super) fn note_retention(&mut self, kept_ms: Option<u64>) {
        self.retention_ms = kept_ms.or(self.retention_ms);
    }

    /// Processes a reply: a time at or before it, its records, and its distance from the tip of the
    /// shard. `waited_ms` is the time that its records may have waited. Returns the gap before its
    /// first record, if any.
    pub(super) fn reply(
        &mut self,
        (at_ms, records, behind_ms): (u64, &[Record], u64),
        waited_ms: Option<u64>,
    ) -> Option<RetentionGap> {
        let first = records.first().map(|record| record.sequence);
        let too_late = waited_ms.zip(self.retention_ms).is_some_and(|(waited, kept)| waited > kept);
        let gone = self.begins.zip(first).is_some_and(|(begins, first)| begins < first);
        let gap = (too_late || gone).then(|| RetentionGap { after: self.read, to: first.map(at) });
        // Once the reading has caught up with an empty shard, the start record may be missing just
        // because the shard was idle for a whole retention.
        if first.is_some() || behind_ms == 0 {
            self.begins = None;
        }
        if let Some(last) = records.last() {
            self.read = at(last.sequence);
        }
        self.last = Some((at_ms, behind_ms));
        gap
    }
}

fn at(sequence: SequenceNumber) -> Position {
    Position::At { sequence, sub: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 86_400_000;

    fn number(low: u64) -> SequenceNumber {
        SequenceNumber::from_limbs(0, 0, low).unwrap()
    }

    fn records(numbers: &[u64]) -> Vec<Record> {
        let record = |low: &u64| Record {
            sequence: number(*low),
            partition_key: "k".into(),
            data: bytes::Bytes::new(),
            arrival_ms: 0,
        };
        numbers.iter().map(record).collect()
    }

    /// Processes a reply after `pause_ms`, from a stream with a retention of one day.
    fn check(
        reach: &mut RetentionTracker,
        now_ms: &mut u64,
        (pause_ms, came, behind_ms): (u64, &[u64], u64),
        want: Option<(Position, Option<u64>)>,
    ) {
        *now_ms += pause_ms;
        let waited_ms = reach.waited_ms(*now_ms);
        reach.note_retention(Some(DAY_MS));
        let gap = reach.reply((*now_ms, &records(came), behind_ms), waited_ms);
        let want =
            want.map(|(after, to)| RetentionGap { after, to: to.map(|low| at(number(low))) });
        assert_eq!(gap, want, "{came:?} after {pause_ms} ms");
    }

    #[test]
    fn what_has_waited_for_longer_than_the_retention_is_told() {
        let (mut reach, mut now_ms) = (RetentionTracker::new(ReadFrom::TrimHorizon), 7);
        let mut step = |reply, want| check(&mut reach, &mut now_ms, reply, want);
        step((DAY_MS * 9, &[1, 2], 0), None);
        step((DAY_MS, &[3], 0), None);
        step((DAY_MS + 1, &[9], 5_000), Some((at(number(3)), Some(9))));
        // Far behind, and reading slower than the records age.
        step((10, &[10], DAY_MS - 100), None);
        step((90, &[11], DAY_MS - 50), None);
        step((90, &[15], DAY_MS - 50), Some((at(number(11)), Some(15))));
        step((2 * DAY_MS, &[], 0), Some((at(number(15)), None)));
        step((1, &[], 0), None);
    }

    #[test]
    fn a_checkpoint_whose_record_is_gone_is_told_where_later_ones_are_there() {
        let at_5 = ReadFrom::At(number(5));
        for (from, replies, want) in [
            (at_5, vec![vec![5, 6]], None),
            (at_5, vec![vec![7]], Some((at(number(5)), Some(7)))),
            // The shard was idle for a whole retention.
            (at_5, vec![vec![], vec![7]], None),
            (ReadFrom::After(number(5)), vec![vec![7]], None),
            (ReadFrom::TrimHorizon, vec![vec![7]], None),
        ] {
            let (mut reach, mut now_ms) = (RetentionTracker::new(from), 0);
            let last = replies.len() - 1;
            for (index, came) in replies.iter().enumerate() {
                let want = want.filter(|_| index == last);
                check(&mut reach, &mut now_ms, (1_000, came, 0), want);
            }
        }
    }
}
