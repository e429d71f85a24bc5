//! Where a shard is read on, and with how many lanes.

use crate::stream::api::ReadFrom;
use anabranch_model::hash::HashKey;
use anabranch_model::lease::Checkpoint;
use anabranch_model::position::Position;
use anabranch_model::record::UserRecord;

/// Up to where each lane of a shard is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::consumer) struct Resume {
    /// One position per lane; never empty.
    lanes: Vec<Position>,
}

impl Resume {
    /// What the row says, with `wanted` lanes if they may change: records go to lanes by number,
    /// so while one lane is ahead of another, the row's number of lanes holds.
    pub(in crate::consumer) fn of(checkpoint: &Checkpoint, wanted: usize) -> Self {
        if checkpoint.is_level() {
            Self { lanes: vec![checkpoint.lowest(); wanted.max(1)] }
        } else {
            Self { lanes: checkpoint.lanes().to_vec() }
        }
    }

    /// What the row says, in one lane: what other lanes had done beyond the lowest comes again.
    pub(in crate::consumer) fn in_one_lane(checkpoint: &Checkpoint) -> Self {
        Self { lanes: vec![checkpoint.lowest()] }
    }

    /// What the row says, in its own number of lanes, level or not.
    pub(in crate::consumer) fn as_it_stands(checkpoint: &Checkpoint) -> Self {
        Self { lanes: checkpoint.lanes().to_vec() }
    }

    /// The same lanes, none of them behind where it was given its records.
    pub(in crate::consumer) fn behind(&self, given: &[Position]) -> Self {
        let lanes = self.lanes.iter().zip(given);
        Self { lanes: lanes.map(|(done, given)| *done.max(given)).collect() }
    }

    /// How many lanes there are.
    pub(in crate::consumer) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The lane of a record: always by the MD5 of its partition key, so that a key stays in one
    /// lane whatever explicit hash keys its records have.
    pub(in crate::consumer) fn lane_of(&self, record: &UserRecord) -> usize {
        if self.lanes.len() == 1 {
            return 0;
        }
        let HashKey(place) = HashKey::of_partition_key(record.partition_key.as_str());
        let lane = place % self.lanes.len() as u128;
        usize::try_from(lane).expect("a remainder is below the number of lanes")
    }

    /// Whether a record of this lane was done before.
    #[inline]
    pub(in crate::consumer) fn is_done(&self, lane: usize, at: Position) -> bool {
        at <= self.lanes[lane]
    }

    /// Up to where each lane is done.
    pub(in crate::consumer) fn positions(&self) -> &[Position] {
        &self.lanes
    }

    /// The lowest lane.
    pub(in crate::consumer) fn lowest(&self) -> Position {
        self.lanes.iter().copied().min().unwrap_or(Position::TrimHorizon)
    }

    /// Where to start reading. The record at a checkpoint is read again, because it may be an
    /// aggregate that is done in part; what was done of it is dropped. `None` when nothing is left.
    pub(in crate::consumer) fn read_from(&self) -> Option<ReadFrom> {
        match self.lowest() {
            Position::AtTimestamp(ms) => Some(ReadFrom::AtTimestamp(ms)),
            Position::TrimHorizon => Some(ReadFrom::TrimHorizon),
            Position::Latest => Some(ReadFrom::Latest),
            Position::At { sequence, .. } => Some(ReadFrom::At(sequence)),
            Position::ShardEnd => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_model::sequence::SequenceNumber;

    fn at(low: u64, sub: u64) -> Position {
        Position::At { sequence: SequenceNumber::from_limbs(0, 0, low).unwrap(), sub }
    }

    fn row(lanes: &[Position]) -> Checkpoint {
        Checkpoint::of_lanes(lanes.to_vec()).unwrap()
    }

    #[test]
    fn the_number_of_lanes_changes_only_while_they_are_level() {
        for (lanes, wanted, want) in [
            (vec![Position::TrimHorizon], 4, vec![Position::TrimHorizon; 4]),
            (vec![at(5, 1); 3], 2, vec![at(5, 1); 2]),
            (vec![at(5, 0), at(9, 0)], 4, vec![at(5, 0), at(9, 0)]),
            (vec![at(5, 0), at(9, 0)], 1, vec![at(5, 0), at(9, 0)]),
            (vec![at(5, 0)], 0, vec![at(5, 0)]),
        ] {
            assert_eq!(Resume::of(&row(&lanes), wanted).lanes, want, "{lanes:?} with {wanted}");
        }
    }

    #[test]
    fn reading_goes_on_at_the_lowest_lane_and_drops_what_each_lane_had_done() {
        let resume = Resume::of(&row(&[at(5, 2), at(9, 0)]), 2);
        let number = SequenceNumber::from_limbs(0, 0, 5).unwrap();
        assert_eq!(resume.read_from(), Some(ReadFrom::At(number)));
        assert!(resume.is_done(0, at(5, 2)) && !resume.is_done(0, at(5, 3)));
        assert!(resume.is_done(1, at(8, 7)) && !resume.is_done(1, at(9, 1)));
        assert_eq!(Resume::of(&row(&[Position::ShardEnd]), 1).read_from(), None);
    }

    #[test]
    fn a_key_stays_in_one_lane_whatever_its_explicit_hash_key() {
        let resume = Resume::of(&row(&[Position::TrimHorizon]), 8);
        let record = |key: &str, hash| UserRecord {
            sequence: SequenceNumber::ZERO,
            sub: 0,
            aggregated: true,
            partition_key: key.into(),
            explicit_hash_key: hash,
            data: bytes::Bytes::new(),
            arrival_ms: 0,
        };
        let lanes: std::collections::BTreeSet<_> = (0..100)
            .map(|i| {
                let key = format!("key-{i}");
                let lane = resume.lane_of(&record(&key, None));
                assert_eq!(lane, resume.lane_of(&record(&key, Some(HashKey::MAX))));
                lane
            })
            .collect();
        assert_eq!(lanes.len(), 8, "all lanes are used");
    }
}
