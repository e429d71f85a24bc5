//! The position at which the reading of a shard resumes, and its number of lanes.

use crate::stream::api::ReadFrom;
use anabranch_model::hash::HashKey;
use anabranch_model::lease::Checkpoint;
use anabranch_model::position::Position;
use anabranch_model::record::UserRecord;

/// Position up to which each lane of a shard is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::consumer) struct Resume {
    /// One position per lane; never empty.
    lanes: Vec<Position>,
}

impl Resume {
    /// Resumes from the checkpoint of a row. Uses `wanted` lanes if all lanes of the checkpoint are
    /// level. Otherwise it keeps their number, because records are assigned to lanes by number.
    pub(in crate::consumer) fn of(checkpoint: &Checkpoint, wanted: usize) -> Self {
        if checkpoint.is_level() {
            Self { lanes: vec![checkpoint.lowest(); wanted.max(1)] }
        } else {
            Self { lanes: checkpoint.lanes().to_vec() }
        }
    }

    /// Resumes from the checkpoint of a row in one lane. Records that other lanes have done beyond
    /// the lowest lane are redelivered.
    pub(in crate::consumer) fn in_one_lane(checkpoint: &Checkpoint) -> Self {
        Self { lanes: vec![checkpoint.lowest()] }
    }

    /// Resumes from the checkpoint of a row with its own number of lanes, level or not.
    pub(in crate::consumer) fn as_it_stands(checkpoint: &Checkpoint) -> Self {
        Self { lanes: checkpoint.lanes().to_vec() }
    }

    /// Moves each lane forward to the position up to which it has received its records.
    pub(in crate::consumer) fn behind(&self, given: &[Position]) -> Self {
        let lanes = self.lanes.iter().zip(given);
        Self { lanes: lanes.map(|(done, given)| *done.max(given)).collect() }
    }

    /// Returns the number of lanes.
    pub(in crate::consumer) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Returns the lane of a record. It depends only on the MD5 of the partition key, so a key
    /// stays in one lane whatever explicit hash keys its records have.
    pub(in crate::consumer) fn lane_of(&self, record: &UserRecord) -> usize {
        if self.lanes.len() == 1 {
            return 0;
        }
        let HashKey(place) = HashKey::of_partition_key(record.partition_key.as_str());
        let lane = place % self.lanes.len() as u128;
        usize::try_from(lane).expect("a remainder is below the number of lanes")
    }

    /// Returns true if a record of this lane at this position was done before.
    #[inline]
    pub(in crate::consumer) fn is_done(&self, lane: usize, at: Position) -> bool {
        at <= self.lanes[lane]
    }

    /// Returns the position up to which each lane is done.
    pub(in crate::consumer) fn positions(&self) -> &[Position] {
        &self.lanes
    }

    /// Returns the position of the lowest lane.
    pub(in crate::consumer) fn lowest(&self) -> Position {
        self.lanes.iter().copied().min().unwrap_or(Position::TrimHorizon)
    }

    /// Returns the position at which reading starts, or `None` if nothing is left to read. The
    /// record at a checkpoint is read again, because it may be an aggregate that is partly done;
    /// the done part is dropped.
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
