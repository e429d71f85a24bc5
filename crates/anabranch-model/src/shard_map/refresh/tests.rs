//! Refresh of the map, by example.

use super::{Invalidation, MapRefresh};
use crate::hash::HashKey;
use crate::lineage::Shard;
use crate::lineage::graphs::{MAX, OPEN, id, range, shard};

fn whole() -> Vec<Shard> {
    vec![shard((0, None, None, (0, MAX), (1, OPEN)))]
}

fn split() -> Vec<Shard> {
    vec![
        shard((1, Some(0), None, (0, 9), (2, OPEN))),
        shard((2, Some(0), None, (10, MAX), (2, OPEN))),
    ]
}

/// A map of one shard, read at `now_ms`.
fn ready_at(now_ms: u64) -> MapRefresh {
    let mut maps = MapRefresh::default();
    let refresh = maps.begin(0).unwrap();
    maps.finish(refresh, whole(), now_ms).unwrap();
    maps
}

#[test]
fn a_new_map_is_due_at_once_and_predicts_nothing() {
    let mut maps = MapRefresh::default();
    assert_eq!((maps.map(), maps.due_ms(), maps.is_ready()), (None, Some(0), false));
    assert_eq!(maps.invalidate(5, None), Invalidation::UnderWay);
    let refresh = maps.begin(0).unwrap();
    assert_eq!(maps.map(), None);
    let map = maps.finish(refresh, whole(), 7).unwrap();
    assert_eq!(map.predict(HashKey(1)), Some(&id(0)));
    assert!(maps.is_ready() && maps.due_ms().is_none());
}

#[test]
fn only_newer_evidence_about_an_open_shard_makes_a_read_due() {
    use Invalidation::{Due, OlderThanMap, ShardAlreadyGone};
    for (seen_ms, predicted, expected) in [
        (99, Some(0), OlderThanMap),
        (100, Some(0), OlderThanMap),
        (100, None, OlderThanMap),
        (101, Some(0), Due),
        (101, None, Due),
        // The child that answered is not the predicted shard; see the argument's name.
        (101, Some(7), ShardAlreadyGone),
    ] {
        let mut maps = ready_at(100);
        let got = maps.invalidate(seen_ms, predicted.map(id).as_ref());
        assert_eq!(got, expected, "seen at {seen_ms}, predicted {predicted:?}");
        assert_eq!(maps.due_ms().is_some(), expected == Due);
    }
    // A closed shard that is kept for its range counts as gone.
    let mut maps = ready_at(100);
    maps.invalidate(101, None);
    let refresh = maps.begin(101).unwrap();
    maps.finish(refresh, split(), 102).unwrap();
    assert!(maps.map().unwrap().range_of(&id(0), 102).is_some());
    assert_eq!(maps.invalidate(103, Some(&id(0))), ShardAlreadyGone);
    assert_eq!(maps.invalidate(103, Some(&id(1))), Due);
}

#[test]
fn there_is_one_read_at_a_time() {
    let mut maps = ready_at(100);
    assert_eq!(maps.begin(100), None, "nothing is due");
    assert_eq!(maps.invalidate(101, None), Invalidation::Due);
    assert_eq!(maps.invalidate(102, None), Invalidation::UnderWay);
    let refresh = maps.begin(102).unwrap();
    assert_eq!(maps.begin(103), None);
    assert_eq!(maps.invalidate(104, None), Invalidation::UnderWay);
    maps.finish(refresh, split(), 105).unwrap();
    assert_eq!(maps.begin(106), None);
}

#[test]
fn the_old_map_predicts_until_the_new_one_is_there() {
    let mut maps = ready_at(100);
    let predicts = |maps: &MapRefresh| maps.map().unwrap().predict(HashKey(1)).cloned();
    maps.invalidate(101, Some(&id(0)));
    assert_eq!(predicts(&maps), Some(id(0)));
    let refresh = maps.begin(101).unwrap();
    assert_eq!(predicts(&maps), Some(id(0)));
    maps.fail(refresh, 102);
    assert_eq!(predicts(&maps), Some(id(0)));
    let refresh = maps.begin(5_000).unwrap();
    maps.finish(refresh, split(), 5_001).unwrap();
    assert_eq!(predicts(&maps), Some(id(1)));
    assert_eq!(maps.map().unwrap().range_of(&id(0), 5_001), Some(range(0, MAX)));
}

/// Fails the next read as soon as it is due, and returns the pause that follows.
fn pause_after_failure(maps: &mut MapRefresh, page_comes: bool) -> u64 {
    let now_ms = maps.due_ms().unwrap();
    assert!(now_ms == 0 || maps.begin(now_ms - 1).is_none(), "begun before it was due");
    let refresh = maps.begin(now_ms).unwrap();
    if page_comes {
        maps.page_came(&refresh);
    }
    maps.fail(refresh, now_ms);
    maps.due_ms().unwrap() - now_ms
}

#[test]
fn pauses_double_from_one_second_to_thirty() {
    let mut maps = MapRefresh::default();
    let pauses: Vec<_> = (0..8).map(|_| pause_after_failure(&mut maps, false)).collect();
    assert_eq!(pauses, [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
    // A failure in the middle of the list counts as a first one again.
    assert_eq!(pause_after_failure(&mut maps, true), 1_000);
    assert_eq!(pause_after_failure(&mut maps, false), 2_000);
    // So does the first one after a complete read.
    let now_ms = maps.due_ms().unwrap();
    let refresh = maps.begin(now_ms).unwrap();
    maps.finish(refresh, whole(), now_ms).unwrap();
    maps.invalidate(now_ms + 1, None);
    assert_eq!(pause_after_failure(&mut maps, false), 1_000);
}

#[test]
fn a_read_from_before_the_map_was_dropped_does_not_count() {
    let mut maps = ready_at(100);
    maps.invalidate(101, None);
    let old = maps.begin(101).unwrap();
    maps.discard();
    assert_eq!((maps.map(), maps.due_ms()), (None, Some(0)));
    let new = maps.begin(102).unwrap();
    assert!(maps.finish(old, split(), 103).is_none());
    assert_eq!(maps.map(), None);
    assert!(maps.finish(new, whole(), 104).is_some());
    // Ranges of the dropped map are not taken over.
    assert_eq!(maps.map().unwrap().range_of(&id(1), 104), None);
}
