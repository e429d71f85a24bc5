//! Prediction at the borders of the hash key space.

use super::{CLOSED_SHARD_KEPT_MS, ShardMap};
use crate::hash::{HashKey, HashRange};
use crate::ids::ShardId;
use crate::lineage::graphs::{A, Line, MAX, OPEN, id, range, shard};
use crate::lineage::{Inconsistency, Shard};
use proptest::prelude::*;

fn map(lines: &[Line]) -> ShardMap {
    ShardMap::new(lines.iter().copied().map(shard), 0, None)
}

fn open(index: u32, start: u128, end: u128) -> Line {
    (index, None, None, (start, end), (1, OPEN))
}

fn check(map: &ShardMap, key: u128, expected: Option<u32>) {
    assert_eq!(map.predict(HashKey(key)).cloned(), expected.map(id), "{key}");
}

#[test]
fn a_key_goes_to_the_open_shard_whose_range_holds_it() {
    let map = map(A);
    for (key, expected) in [
        (0, 8),
        (199, 8),
        (399, 8),
        (400, 4),
        (499, 4),
        (500, 9),
        (799, 9),
        (800, 10),
        (MAX - 1, 10),
        (MAX, 10),
    ] {
        check(&map, key, Some(expected));
    }
    assert_eq!(map.problems(), []);
    assert_eq!(map.open_count(), 4);
}

#[test]
fn ranges_of_one_key_are_found() {
    let map = map(&[open(0, 0, 0), open(1, 1, 1), open(2, 2, MAX - 1), open(3, MAX, MAX)]);
    for (key, expected) in [(0, 0), (1, 1), (2, 2), (MAX - 1, 2), (MAX, 3)] {
        check(&map, key, Some(expected));
    }
    assert_eq!(map.problems(), []);
}

#[test]
fn a_key_in_a_gap_has_no_shard() {
    let gaps = map(&[open(0, 10, 19), open(1, 30, MAX - 1)]);
    for (key, expected) in [
        (0, None),
        (9, None),
        (10, Some(0)),
        (19, Some(0)),
        (20, None),
        (29, None),
        (30, Some(1)),
        (MAX, None),
    ] {
        check(&gaps, key, expected);
    }
    let holes = [range(0, 9), range(20, 29), range(MAX, MAX)];
    assert_eq!(gaps.problems(), holes.map(Inconsistency::Hole));
    check(&map(&[]), 0, None);
    check(&ShardMap::default(), MAX, None);
}

#[test]
fn overlaps_are_named_and_still_predicted_to_a_shard_that_holds_the_key() {
    let map = map(&[open(0, 0, 20), open(1, 10, MAX)]);
    let (low, high) = (id(0), id(1));
    assert_eq!(map.problems(), [Inconsistency::OverlappingOpenShards { low, high }]);
    for (key, expected) in [(9, 0), (10, 0), (20, 0), (21, 1)] {
        check(&map, key, Some(expected));
    }
}

#[test]
fn a_closed_shard_keeps_its_range_for_a_while() {
    let parent = map(&[open(0, 0, MAX)]);
    let children = [open(1, 0, 9), open(2, 10, MAX)];
    let split = ShardMap::new(children.map(shard), 1_000, Some(&parent));
    let forgotten = 1_000 + CLOSED_SHARD_KEPT_MS;
    assert_eq!(split.range_of(&id(0), forgotten - 1), Some(range(0, MAX)));
    assert_eq!(split.range_of(&id(0), forgotten), None);
    assert!(!split.is_open(&id(0)) && split.is_open(&id(1)));
    check(&split, 0, Some(1));
    // Later maps neither extend the time nor keep expired ranges.
    let again = ShardMap::new(children.map(shard), 2_000, Some(&split));
    assert_eq!(again.range_of(&id(0), forgotten - 1), Some(range(0, MAX)));
    assert_eq!(again.range_of(&id(0), forgotten), None);
    let late = ShardMap::new(children.map(shard), forgotten, Some(&again));
    assert_eq!(late.range_of(&id(0), 0), None);
    assert_eq!(late.range_of(&id(1), u64::MAX), Some(range(0, 9)));
    assert_eq!(late.range_of(&id(7), 0), None);
}

#[test]
fn a_closed_shard_of_the_list_is_known_and_not_predicted() {
    let map = map(A);
    assert_eq!(map.range_of(&id(6), 0), Some(range(0, 199)));
    assert_eq!(map.range_of(&id(6), CLOSED_SHARD_KEPT_MS), None);
    assert!(!map.is_open(&id(6)));
}

#[test]
fn a_stream_made_anew_gives_old_names_new_ranges() {
    let before = map(&[open(0, 0, 9), open(1, 10, MAX)]);
    let after = ShardMap::new([shard(open(0, 0, MAX))], 1_000, Some(&before));
    assert_eq!(after.range_of(&id(0), 1_000), Some(range(0, MAX)));
    assert_eq!(after.predict(HashKey::MAX), Some(&id(0)));
}

/// Returns the open shards that result from cutting the whole range at these keys.
fn shards_of(cuts: &std::collections::BTreeSet<u128>) -> Vec<Shard> {
    let mut rest = HashRange::ALL;
    let mut ranges = Vec::new();
    for cut in cuts {
        if let Some((low, high)) = rest.split_at(HashKey(*cut)) {
            ranges.push(low);
            rest = high;
        }
    }
    ranges.push(rest);
    (0..).zip(ranges).map(|(i, r)| shard(open(i, r.start().0, r.end().0))).collect()
}

/// A number that is often at or next to a border.
fn border() -> impl Strategy<Value = u128> {
    prop_oneof![
        any::<u128>(),
        0u128..4,
        (0u128..4).prop_map(|n| MAX - n),
        1u128 << 127..(1 << 127) + 3
    ]
}

proptest! {
    #[test]
    fn a_prediction_is_what_a_look_at_every_range_finds(
        cuts in prop::collection::btree_set(border(), 0..40),
        mut keys in prop::collection::vec(border(), 1..20),
        lacking: prop::sample::Index,
        with_a_gap: bool,
    ) {
        let mut shards = shards_of(&cuts);
        keys.extend(shards.iter().flat_map(|s| [s.range.start().0, s.range.end().0]));
        if with_a_gap {
            shards.remove(lacking.index(shards.len()));
        }
        let map = ShardMap::new(shards.iter().rev().cloned(), 0, None);
        prop_assert_eq!(map.problems().is_empty(), !with_a_gap || shards.is_empty());
        for key in keys.into_iter().map(HashKey) {
            let looked: Option<&ShardId> =
                shards.iter().find(|shard| shard.range.contains(key)).map(|shard| &shard.id);
            prop_assert_eq!(map.predict(key), looked, "{}", key);
            if let Some(id) = looked {
                prop_assert!(map.range_of(id, u64::MAX).unwrap().contains(key));
            }
        }
    }

    #[test]
    fn overlapping_garbage_predicts_only_shards_that_hold_the_key(
        ranges in prop::collection::vec((0u128..30, 0u128..30), 0..10),
    ) {
        let shards: Vec<_> = (0..)
            .zip(ranges)
            .map(|(i, (a, b))| shard(open(i, a.min(b), a.max(b))))
            .collect();
        let map = ShardMap::new(shards.clone(), 0, None);
        for key in (0..32).map(HashKey) {
            if let Some(id) = map.predict(key) {
                prop_assert!(map.range_of(id, 0).unwrap().contains(key));
            }
        }
    }
}
