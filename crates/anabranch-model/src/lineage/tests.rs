//! The shard graph by example, and on invalid input.

use super::graphs::{A, B, C, Line, MAX, OPEN, graph, id, ids, range, shard};
use super::{Inconsistency, Lineage};
use crate::ids::ShardId;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn cloned(ids: Vec<&ShardId>) -> Vec<ShardId> {
    ids.into_iter().cloned().collect()
}

#[test]
fn ancestors_come_oldest_first() {
    for (lines, of, expected) in [
        (A, 0, vec![]),
        (A, 6, vec![0, 1]),
        (A, 8, vec![0, 1, 2, 3, 6, 7]),
        (A, 10, vec![5]),
        (B, 10, (0..9).collect()),
        (C, 10, vec![0, 5]),
    ] {
        let lineage = graph(lines);
        let child = id(of);
        let order = cloned(lineage.ancestors(&child));
        assert_eq!(
            order.iter().cloned().collect::<BTreeSet<_>>(),
            ids(expected).into_iter().collect()
        );
        for (i, ancestor) in order.iter().enumerate() {
            for parent in lineage.listed_parents(ancestor) {
                assert!(order[..i].contains(&parent.id), "{} after {ancestor}", parent.id);
            }
        }
    }
}

#[test]
fn a_trimmed_ancestor_is_named_and_nothing_above_it_is_known() {
    let lineage = graph(&A[6..]);
    assert_eq!(lineage.missing_parents(&id(7)).cloned().collect::<Vec<_>>(), ids([2, 3]));
    assert_eq!(lineage.listed_parents(&id(7)).count(), 0);
    let ancestors: BTreeSet<_> = cloned(lineage.ancestors(&id(8))).into_iter().collect();
    assert_eq!(ancestors, ids([0, 1, 2, 3, 6, 7]).into_iter().collect());
    // A trimmed parent still has its children.
    assert_eq!(lineage.children(&id(5)), ids([9, 10]));
}

#[test]
fn an_adjacent_parent_alone_is_a_parent() {
    let lineage = graph(A);
    assert_eq!(lineage.children(&id(5)), ids([9, 10]));
    assert_eq!(lineage.listed_parents(&id(10)).map(|p| p.id.clone()).collect::<Vec<_>>(), ids([5]));
}

#[test]
fn a_parent_named_twice_counts_once() {
    let lineage =
        graph(&[(0, None, None, (0, MAX), (1, 2)), (1, Some(0), Some(0), (0, 9), (3, OPEN))]);
    assert_eq!(lineage.children(&id(0)), ids([1]));
}

#[test]
fn a_shard_may_start_when_every_listed_parent_ended() {
    for (lines, ended, expected) in [
        (A, vec![], vec![0, 1, 2, 3, 4, 5]),
        (A, vec![0], vec![1, 2, 3, 4, 5]),
        (A, vec![0, 1], vec![2, 3, 4, 5, 6]),
        (A, vec![0, 1, 2, 3, 5], vec![4, 6, 7, 9, 10]),
        (A, vec![0, 1, 2, 3, 5, 6], vec![4, 7, 9, 10]),
        (A, vec![0, 1, 2, 3, 5, 6, 7], vec![4, 8, 9, 10]),
        // The first layer is trimmed.
        (&A[6..], vec![], vec![6, 7, 9, 10]),
        // One of the two merged shards is trimmed.
        (&A[7..], vec![], vec![7, 9, 10]),
        (B, vec![0, 1, 2, 3, 4], vec![5]),
    ] {
        let ended = ids(ended);
        let lineage = graph(lines);
        let got: Vec<_> =
            lineage.startable(|id| ended.contains(id)).iter().map(|s| s.id.clone()).collect();
        assert_eq!(got, ids(expected), "ended {ended:?}");
    }
    assert!(!graph(A).may_start(&id(11), |_| true), "an unlisted shard may not start");
}

#[test]
fn the_oldest_listed_shards_inherit_a_lost_range() {
    let check = |lines: &[Line], gone, (start, end), expected: Option<&[u32]>| {
        let lineage = graph(lines);
        let heirs = lineage.successors(&id(gone), Some(&range(start, end)));
        let got = heirs.map(|heirs| heirs.iter().map(|s| s.id.clone()).collect::<Vec<_>>());
        assert_eq!(got, expected.map(|e| ids(e.iter().copied())), "{gone} [{start}, {end}]");
    };
    check(&A[6..], 0, (0, 99), Some(&[6]));
    check(&A[7..], 0, (0, 99), Some(&[8]));
    check(&A[7..], 2, (200, 299), Some(&[7]));
    check(&A[8..], 5, (500, MAX), Some(&[9, 10]));
    check(&B[3..], 0, (0, 99), Some(&[3]));
    check(&B[5..], 0, (0, 99), Some(&[5]));
    check(&C[7..], 0, (0, 399), Some(&[7, 8, 9, 10]));
    // The shard is listed.
    check(A, 0, (0, 99), None);
    // The list is older than the shard, by one reshard and by two.
    check(&A[..6], 6, (0, 199), None);
    check(&A[..6], 8, (0, 399), None);
    // A list of other keys, or an empty one, proves nothing.
    check(&A[4..5], 0, (0, 99), None);
    check(&[], 0, (0, 99), None);
}

#[test]
fn the_keys_of_a_lost_shard_are_found_without_its_range() {
    let check = |lines: &[Line], gone, expected: Option<&[(u128, u128)]>, heirs: &[u32]| {
        let lineage = graph(lines);
        let keys = lineage.keys_of_lost(&id(gone));
        let ranges = |keys: &[(u128, u128)]| keys.iter().map(|(a, b)| range(*a, *b)).collect();
        assert_eq!(keys, expected.map(ranges), "{gone} in {lines:?}");
        let got = lineage.successors(&id(gone), None).unwrap_or_default();
        let got: Vec<_> = got.iter().map(|shard| shard.id.clone()).collect();
        assert_eq!(got, ids(heirs.iter().copied()), "{gone} in {lines:?}");
    };
    let without = |lines: &[Line], gone: &[u32]| -> Vec<Line> {
        lines.iter().copied().filter(|line| !gone.contains(&line.0)).collect()
    };
    // Both children of a split are listed, beside older and younger shards.
    check(&without(A, &[0, 1, 2, 3, 5]), 5, Some(&[(500, MAX)]), &[9, 10]);
    // One child of the split is gone too: its keys are the shard's as well. Keys of other shards
    // that are gone may be included.
    check(&without(C, &[0, 5]), 0, Some(&[(0, 399)]), &[4, 9, 10]);
    check(&without(C, &[0, 2, 3, 5]), 0, Some(&[(0, 399), (500, MAX)]), &[4, 6, 9, 10]);
    // The other parent of the merged child is listed, but the shard is not.
    check(&without(A, &[0]), 0, Some(&[(0, 99)]), &[6]);
    check(&without(A, &[1]), 1, Some(&[(100, 199)]), &[6]);
    check(&without(A, &[0, 1]), 1, Some(&[(0, 199)]), &[6]);
    // Only grandchildren are left. It is not known from which of the merged shards they descend.
    check(&without(A, &[0, 1, 2, 3, 6, 7]), 2, Some(&[(0, 399)]), &[8]);
    check(&without(C, &[0, 2, 3, 4, 5]), 0, Some(&[(0, 399), (500, MAX)]), &[6, 7, 8, 9, 10]);
    // The shard is listed, a listed shard may be its parent, or the list has holes.
    check(A, 5, None, &[]);
    check(&without(C, &[4, 7, 8]), 4, None, &[]);
    check(&without(A, &[5, 9]), 5, None, &[]);
    check(&[], 0, None, &[]);
    // The list is older than the shard: no keys are left for it.
    let young = [(0, None, None, (0, 9), (1, OPEN)), (1, None, None, (10, MAX), (1, OPEN))];
    check(&young, 2, Some(&[]), &[]);
    check(&young, 9, Some(&[]), &[]);
}

#[test]
fn a_shard_is_followed_by_children_that_take_all_of_its_keys() {
    let check = |lines: &[Line], ended, known: Option<(u128, u128)>, expected: Option<&[u32]>| {
        let lineage = graph(lines);
        let known = known.map(|(start, end)| range(start, end));
        let got = lineage.followers(&id(ended), known.as_ref());
        let got = got.map(|shards| shards.iter().map(|s| s.id.clone()).collect::<Vec<_>>());
        assert_eq!(got, expected.map(|e| ids(e.iter().copied())), "{ended} {known:?}");
    };
    check(A, 5, None, Some(&[9, 10]));
    check(A, 0, None, Some(&[6]));
    // The shard is trimmed: the caller's range is used.
    check(&A[8..], 5, Some((500, MAX)), Some(&[9, 10]));
    check(&A[8..], 5, None, None);
    // The list is torn: it contains one or none of two children.
    check(&A[..10], 5, None, None);
    check(&A[..6], 5, Some((500, MAX)), None);
}

fn check_inconsistencies(lines: &[Line], expected: &[Inconsistency]) {
    let lineage = graph(lines);
    assert_eq!(lineage.inconsistencies(), expected, "{lines:?}");
    let mut reversed = lines.to_vec();
    reversed.reverse();
    let again = graph(&reversed).inconsistencies();
    assert_eq!(again, expected, "in another order: {lines:?}");
}

#[test]
fn a_true_list_is_consistent_whole_or_trimmed() {
    for lines in [A, B, C, &B[1..], &B[4..], &B[9..]] {
        check_inconsistencies(lines, &[]);
    }
    for trimmed in [&[0][..], &[1], &[0, 1], &[0, 1, 2, 3], &[0, 1, 2, 3, 5], &[0, 1, 2, 3, 5, 6]] {
        let lines: Vec<_> = A.iter().copied().filter(|line| !trimmed.contains(&line.0)).collect();
        check_inconsistencies(&lines, &[]);
    }
    check_inconsistencies(&[], &[]);
}

#[test]
fn what_is_wrong_with_a_list_is_named() {
    use Inconsistency as I;
    let all = (0, MAX);
    check_inconsistencies(
        &[(0, None, None, all, (1, OPEN)), (1, Some(0), None, (0, 9), (2, 3))],
        &[I::ChildOfOpenParent { child: id(1), parent: id(0) }],
    );
    check_inconsistencies(
        &[(0, None, None, (0, 10), (1, OPEN)), (1, None, None, (10, MAX), (1, OPEN))],
        &[I::OverlappingOpenShards { low: id(0), high: id(1) }],
    );
    check_inconsistencies(
        &[(0, None, None, (0, 9), (1, OPEN)), (1, None, None, (11, MAX), (1, OPEN))],
        &[I::Hole(range(10, 10))],
    );
    check_inconsistencies(&[(0, None, None, all, (1, 2))], &[I::Hole(range(0, MAX))]);
    // A split child outside its parent's range.
    check_inconsistencies(
        &[
            (0, None, None, (0, 9), (1, 2)),
            (1, Some(0), None, (0, 10), (3, OPEN)),
            (2, None, None, (11, MAX), (1, OPEN)),
        ],
        &[I::ParentRangeMismatch { child: id(1), parents: ids([0]) }],
    );
    // A merged child that is not the union of both, and one that lacks the listed parent's range.
    check_inconsistencies(
        &[
            (0, None, None, (0, 9), (1, 2)),
            (1, None, None, (20, MAX), (1, 2)),
            (2, Some(0), Some(1), all, (3, OPEN)),
        ],
        &[I::ParentRangeMismatch { child: id(2), parents: ids([0, 1]) }],
    );
    check_inconsistencies(
        &[(1, None, None, (20, 29), (1, 2)), (2, Some(0), Some(1), all, (3, OPEN))],
        &[I::ParentRangeMismatch { child: id(2), parents: ids([1]) }],
    );
    // A cycle of two, with a shard below it that is not part of it.
    check_inconsistencies(
        &[
            (0, Some(1), None, all, (1, 2)),
            (1, Some(0), None, all, (1, 2)),
            (2, Some(1), None, all, (3, OPEN)),
        ],
        &[I::Cycle(ids([0, 1]))],
    );
    check_inconsistencies(
        &[(0, Some(0), None, all, (1, 2)), (1, None, None, all, (1, OPEN))],
        &[I::Cycle(ids([0]))],
    );
}

#[test]
fn of_two_entries_with_one_name_the_first_is_kept() {
    let lines = [(0, None, None, (0, MAX), (1, OPEN)), (0, None, None, (0, 9), (1, OPEN))];
    let lineage = graph(&lines);
    assert_eq!(lineage.get(&id(0)), Some(&shard(lines[0])));
    assert_eq!(lineage.inconsistencies(), [Inconsistency::DuplicateId(id(0))]);
}

#[test]
fn a_lineage_as_deep_as_it_has_shards_is_walked() {
    let lines: Vec<Line> = (0..20_000u32)
        .map(|i| (i, i.checked_sub(1), None, (0, MAX), (u64::from(i) + 1, u64::from(i) + 1)))
        .collect();
    let lineage = graph(&lines);
    assert_eq!(cloned(lineage.ancestors(&id(19_999))), ids(0..19_999));
    assert_eq!(lineage.inconsistencies(), [Inconsistency::Hole(range(0, MAX))]);
}

proptest! {
    #[test]
    fn garbage_neither_panics_nor_loops(
        lines in prop::collection::vec(
            (0u32..8, prop::option::of(0u32..9), prop::option::of(0u32..9), (0u128..9, 0u128..9), (0u64..4, 0u64..4)),
            0..12,
        ),
        ended in prop::collection::btree_set(0u32..9, 0..9),
    ) {
        let lineage = Lineage::new(lines.into_iter().map(|(i, p, a, (x, y), s)| shard((i, p, a, (x.min(y), x.max(y)), s))));
        lineage.inconsistencies();
        for i in 0..9 {
            let shard = id(i);
            let ancestors = lineage.ancestors(&shard);
            let distinct: BTreeSet<_> = ancestors.iter().collect();
            prop_assert_eq!(distinct.len(), ancestors.len());
            lineage.successors(&shard, Some(&range(0, u128::from(i))));
            lineage.successors(&shard, None);
        }
        for shard in lineage.startable(|id| id.index().is_some_and(|i| ended.contains(&i))) {
            for parent in lineage.listed_parents(&shard.id) {
                prop_assert!(ended.contains(&parent.id.index().unwrap()));
            }
        }
    }
}
