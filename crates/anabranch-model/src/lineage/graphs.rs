//! Shard graphs as test data.

use super::{Lineage, Shard};
use crate::hash::{HashKey, HashRange};
use crate::ids::ShardId;
use crate::sequence::SequenceNumber;

pub(crate) const MAX: u128 = u128::MAX;

/// Marks an open shard in a row of a graph.
pub(crate) const OPEN: u64 = 0;

/// One shard: its number, parent, adjacent parent, hash range, first and last sequence number.
pub(crate) type Line = (u32, Option<u32>, Option<u32>, (u128, u128), (u64, u64));

pub(crate) fn id(index: u32) -> ShardId {
    ShardId::from_index(index)
}

pub(crate) fn ids(indexes: impl IntoIterator<Item = u32>) -> Vec<ShardId> {
    indexes.into_iter().map(id).collect()
}

pub(crate) fn range(start: u128, end: u128) -> HashRange {
    HashRange::new(HashKey(start), HashKey(end)).unwrap()
}

pub(crate) fn shard(line: Line) -> Shard {
    let (index, parent, adjacent_parent, (start, end), (first, last)) = line;
    let sequence = |number| SequenceNumber::from_limbs(0, 0, number).unwrap();
    Shard {
        id: id(index),
        parent: parent.map(id),
        adjacent_parent: adjacent_parent.map(id),
        range: range(start, end),
        starting: sequence(first),
        ending: (last != OPEN).then(|| sequence(last)),
    }
}

pub(crate) fn graph(lines: &[Line]) -> Lineage {
    Lineage::new(lines.iter().copied().map(shard))
}

/// Two layers of merges on the left, an untouched shard, a split on the right.
pub(crate) const A: &[Line] = &[
    (0, None, None, (0, 99), (11, 102)),
    (1, None, None, (100, 199), (11, 102)),
    (2, None, None, (200, 299), (11, 102)),
    (3, None, None, (300, 399), (11, 102)),
    (4, None, None, (400, 499), (11, OPEN)),
    (5, None, None, (500, MAX), (11, 205)),
    (6, Some(0), Some(1), (0, 199), (103, 205)),
    (7, Some(2), Some(3), (200, 399), (103, 205)),
    (8, Some(6), Some(7), (0, 399), (206, OPEN)),
    (9, Some(5), None, (500, 799), (206, OPEN)),
    (10, None, Some(5), (800, MAX), (206, OPEN)),
];

/// Alternating merges and splits over the whole range.
pub(crate) const B: &[Line] = &[
    (0, None, None, (0, 99), (1000, 1049)),
    (1, None, None, (100, MAX), (1000, 1049)),
    (2, Some(0), Some(1), (0, MAX), (1050, 1099)),
    (3, Some(2), None, (0, 99), (1100, 1149)),
    (4, Some(2), None, (100, MAX), (1100, 1149)),
    (5, Some(3), Some(4), (0, MAX), (1150, 1199)),
    (6, Some(5), None, (0, 99), (1200, 1249)),
    (7, Some(5), None, (100, MAX), (1200, 1249)),
    (8, Some(6), Some(7), (0, MAX), (1250, 1299)),
    (9, Some(8), None, (0, 99), (1300, OPEN)),
    (10, None, Some(8), (100, MAX), (1300, OPEN)),
];

/// Two layers of splits on the left, an untouched shard, a merge on the right.
pub(crate) const C: &[Line] = &[
    (0, None, None, (0, 399), (11, 102)),
    (1, None, None, (400, 499), (11, OPEN)),
    (2, None, None, (500, 599), (11, 102)),
    (3, None, None, (600, MAX), (11, 102)),
    (4, Some(0), None, (0, 199), (103, 205)),
    (5, Some(0), None, (200, 399), (103, 205)),
    (6, Some(2), Some(3), (500, MAX), (103, OPEN)),
    (7, Some(4), None, (0, 99), (206, OPEN)),
    (8, Some(4), None, (100, 199), (206, OPEN)),
    (9, Some(5), None, (200, 299), (206, OPEN)),
    (10, Some(5), None, (300, 399), (206, OPEN)),
];
