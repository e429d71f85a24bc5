//! Rows created by a sync: KCL's cases on KCL's graphs, and Anabranch's own.

use super::{OnInconsistentChild, Protocol, SyncError, covered, first_sync, forgotten, sync};
use crate::lease::row::{Lease, NewLease};
use crate::lineage::Inconsistency;
use crate::lineage::graphs::{A, B, C, Line, MAX, OPEN, graph, id, ids, range, shard};
use crate::position::{Position, StartPosition};
use OnInconsistentChild::{Refuse, Skip};
use Protocol::Kcl2;
use StartPosition::{AtTimestamp, Latest, TrimHorizon};

const T0: u64 = 1_700_000_000_000;
const NATIVE: Protocol = Protocol::Native { t0_ms: T0 };

fn row(lines: &[Line], index: u32, checkpoint: Position) -> Lease {
    // A row may outlive its shard's place in the list.
    let gone = (index, None, None, (0, MAX), (1, 2));
    let line = lines.iter().find(|line| line.0 == index).unwrap_or(&gone);
    NewLease::new(&shard(*line), checkpoint).into_lease(&"s".into())
}

fn unfinished(lines: &[Line], indexes: &[u32]) -> Vec<Lease> {
    indexes.iter().map(|index| row(lines, *index, Position::TrimHorizon)).collect()
}

/// Returns the shards that get a row, and checks that all of them start at `start`.
fn rows_made(lines: &[Line], rows: &[Lease], start: StartPosition, protocol: Protocol) -> Vec<u32> {
    let made = sync(&graph(lines), rows, start, protocol, Refuse).unwrap();
    let expected: Position = match (start, protocol) {
        (Latest, Protocol::Native { t0_ms }) => Position::AtTimestamp(t0_ms),
        (start, _) => start.into(),
    };
    for lease in &made {
        assert_eq!(lease.checkpoint, expected, "{}", lease.shard);
        let line = lines.iter().find(|line| id(line.0) == lease.shard).unwrap();
        assert_eq!(*lease, NewLease::new(&shard(*line), expected));
    }
    made.iter().map(|lease| lease.shard.index().unwrap()).collect()
}

/// A KCL test case: graph, shards with rows, shards that get one.
type Case<'a> = (&'a [Line], &'a [u32], &'a [u32]);

const FROM_LATEST: &[Case<'_>] = &[
    (A, &[3, 4, 5], &[2, 6]),
    (A, &[4, 5, 7], &[6]),
    (A, &[2, 6], &[3, 4, 9, 10]),
    (A, &[4, 9, 10], &[8]),
    (A, &[4, 5, 6, 7], &[]),
    (A, &[0, 1, 2, 3, 4, 5, 6, 7], &[]),
    (A, &[0, 1, 4, 7, 9, 10], &[]),
    (C, &[9, 10], &[1, 6, 7, 8]),
    (B, &[6], &[7]),
    (B, &[5], &[]),
    (B, &[0, 1, 2, 3, 4, 5], &[]),
];

const FROM_THE_PAST: &[Case<'_>] = &[
    (A, &[3, 4, 5], &[0, 1, 2]),
    (A, &[4, 5, 7], &[0, 1]),
    (A, &[2, 6], &[3, 4, 5]),
    (A, &[4, 9, 10], &[0, 1, 2, 3]),
    (A, &[4, 5, 6, 7], &[]),
    (A, &[0, 1, 2, 3, 4, 5, 6, 7], &[]),
    (A, &[0, 1, 4, 7, 9, 10], &[]),
    (B, &[6], &[7]),
    (B, &[0, 1, 2, 3, 4, 5], &[]),
    (B, &[5], &[]),
];

fn check(cases: &[Case<'_>], start: StartPosition, protocol: Protocol) {
    for (lines, rows, expected) in cases {
        let got = rows_made(lines, &unfinished(lines, rows), start, protocol);
        assert_eq!(got, *expected, "{start:?}, {protocol:?}, rows {rows:?}");
    }
}

#[test]
fn the_rows_are_kcls_from_latest() {
    check(FROM_LATEST, Latest, Kcl2);
}

#[test]
fn the_rows_are_kcls_from_trim_horizon() {
    check(FROM_THE_PAST, TrimHorizon, Kcl2);
}

#[test]
fn the_rows_are_kcls_from_a_timestamp() {
    check(FROM_THE_PAST, AtTimestamp(7), Kcl2);
}

#[test]
fn latest_means_the_first_start_in_our_own_layout() {
    check(FROM_THE_PAST, Latest, NATIVE);
    check(FROM_THE_PAST, TrimHorizon, NATIVE);
    check(FROM_THE_PAST, AtTimestamp(7), NATIVE);
}

/// Filters a graph by the shards of a filtered list.
fn filtered(lines: &[Line], held: &[u32]) -> Vec<Line> {
    lines.iter().copied().filter(|line| held.contains(&line.0)).collect()
}

#[test]
fn the_first_rows_are_the_filtered_list() {
    for (lines, start, held) in [
        (A, Latest, &[4, 8, 9, 10][..]),
        (A, TrimHorizon, &[0, 1, 2, 3, 4, 5]),
        (A, AtTimestamp(7), &[0, 1, 2, 3, 4, 5]),
        (B, Latest, &[9, 10]),
        (B, TrimHorizon, &[0, 1]),
        (B, AtTimestamp(7), &[0, 1]),
    ] {
        for protocol in [Kcl2, NATIVE] {
            assert_eq!(rows_made(&filtered(lines, held), &[], start, protocol), held);
        }
    }
}

#[test]
fn a_first_list_that_leaves_keys_out_makes_no_row() {
    let lines = filtered(A, &[4, 8, 10]);
    let holes = vec![range(500, 799)];
    let got = sync(&graph(&lines), &[], Latest, Kcl2, Skip);
    assert_eq!(got, Err(SyncError::IncompleteList { holes }));
    // With rows, the list is a full one; holes in it are not checked here.
    assert_eq!(rows_made(&lines, &unfinished(A, &[4, 8]), Latest, Kcl2), [10]);
}

#[test]
fn an_unfinished_first_sync_is_repeated_whole() {
    let lines = filtered(A, &[4, 8, 9, 10]);
    let made = first_sync(&graph(&lines), Latest, NATIVE, Refuse).unwrap();
    assert_eq!(made.iter().map(|new| new.shard.clone()).collect::<Vec<_>>(), ids([4, 8, 9, 10]));
}

#[test]
fn an_empty_list_makes_no_row() {
    assert_eq!(sync(&graph(&[]), &[], Latest, Kcl2, Refuse), Ok(vec![]));
    let first = first_sync(&graph(&[]), Latest, NATIVE, Refuse);
    assert_eq!(first, Err(SyncError::IncompleteList { holes: vec![range(0, MAX)] }));
    assert_eq!(rows_made(&[], &unfinished(A, &[4]), TrimHorizon, Kcl2), [0u32; 0]);
}

#[test]
fn closed_shards_without_rows_are_left_alone() {
    let lines = [
        (0, None, None, (0, 99), (1, 2)),
        (1, None, None, (100, MAX), (1, OPEN)),
        (2, None, None, (0, 99), (1, OPEN)),
    ];
    for start in [Latest, TrimHorizon, AtTimestamp(7)] {
        assert_eq!(rows_made(&lines, &unfinished(&lines, &[2]), start, Kcl2), [1]);
        // The row's own shard need not be listed.
        assert_eq!(rows_made(&lines[..2], &unfinished(&lines, &[2]), start, Kcl2), [1]);
    }
}

/// Shard 2 is merged from 0 and 1; shard 9 provides a row.
const MERGED: &[Line] = &[
    (0, None, None, (0, 99), (1, 2)),
    (1, None, None, (100, 199), (1, 2)),
    (2, Some(0), Some(1), (0, 199), (3, OPEN)),
    (9, None, None, (200, MAX), (1, OPEN)),
];

#[test]
fn a_merged_child_takes_both_parents_with_it() {
    for (start, rows, expected) in [
        (Latest, &[9][..], &[2][..]),
        (Latest, &[0, 9], &[1]),
        (Latest, &[1, 9], &[0]),
        (Latest, &[0, 1, 9], &[]),
        (TrimHorizon, &[9], &[0, 1]),
        (TrimHorizon, &[0, 9], &[1]),
        (AtTimestamp(7), &[9], &[0, 1]),
        (AtTimestamp(7), &[0, 1, 9], &[]),
    ] {
        let got = rows_made(MERGED, &unfinished(MERGED, rows), start, Kcl2);
        assert_eq!(got, expected, "{start:?}, rows {rows:?}");
    }
}

#[test]
fn a_row_that_was_started_proves_both_merged_parents_over() {
    // Shard 2 is split into 3 and 4; the row of 4 was lost, then those of 0 and 1.
    let split: &[Line] = &[
        (0, None, None, (0, 99), (1, 2)),
        (1, None, None, (100, MAX), (1, 2)),
        (2, Some(0), Some(1), (0, MAX), (3, 4)),
        (3, Some(2), None, (0, 99), (5, OPEN)),
        (4, Some(2), None, (100, MAX), (5, OPEN)),
    ];
    let at = Position::At { sequence: "3".parse().unwrap(), sub: 0 };
    assert_eq!(rows_made(split, &unfinished(split, &[3]), TrimHorizon, Kcl2), [4]);
    assert_eq!(rows_made(split, &[row(split, 3, at)], TrimHorizon, Kcl2), [4]);
    // The tombstone of 0 does not bring back 1.
    assert_eq!(rows_made(split, &unfinished(split, &[0, 3]), TrimHorizon, Kcl2), [0u32; 0]);
    // A merged child's row alone leaves one of the two parents in doubt, so no parent is left out.
    let chain = &B[..6];
    let merged_again: Vec<Line> = [chain, &[(11, Some(3), None, (0, 9), (1150, OPEN))]].concat();
    let unsure = rows_made(&merged_again, &unfinished(chain, &[5]), TrimHorizon, Kcl2);
    assert_eq!(unsure, [0, 1]);
    let sure = rows_made(&merged_again, &[row(chain, 5, at)], TrimHorizon, Kcl2);
    assert_eq!(sure, [11]);
}

#[test]
fn trimmed_parents_are_not_looked_for() {
    for start in [Latest, TrimHorizon, AtTimestamp(7)] {
        let rows = unfinished(MERGED, &[9]);
        assert_eq!(rows_made(&MERGED[2..], &rows, start, Kcl2), [2]);
        // The end of a trimmed parent with an unfinished row will create the child's row.
        let mut rows = unfinished(MERGED, &[9]);
        rows.push(row(MERGED, 0, Position::TrimHorizon));
        assert_eq!(rows_made(&MERGED[2..], &rows, start, Kcl2), [0u32; 0]);
        rows[1].range = None;
        assert_eq!(rows_made(&MERGED[2..], &rows, start, Kcl2), [0u32; 0]);
        rows[1].checkpoint = Position::ShardEnd.into();
        let made = sync(&graph(&MERGED[2..]), &rows, start, Kcl2, Refuse).unwrap();
        assert_eq!(made, [NewLease::child(&shard(MERGED[2]))], "its row was lost");
    }
    assert_eq!(rows_made(&MERGED[1..], &unfinished(MERGED, &[9]), TrimHorizon, Kcl2), [1]);
}

#[test]
fn rows_without_a_range_stand_for_all_keys_that_they_may_have() {
    let merged = &MERGED[2..];
    let check = |rows: &[(u32, bool)], expected: Option<&[(u128, u128)]>| {
        let rows = rows.iter().map(|(index, ranged)| {
            let row = row(MERGED, *index, Position::TrimHorizon);
            Lease { range: row.range.filter(|_| *ranged), ..row }
        });
        let keys = covered(&graph(merged), &rows.collect::<Vec<_>>());
        let ranges = |keys: &[(u128, u128)]| keys.iter().map(|(a, b)| range(*a, *b)).collect();
        assert_eq!(keys, expected.map(ranges));
    };
    check(&[(2, true), (9, false)], Some(&[(0, 199), (200, MAX)]));
    check(&[(1, false)], Some(&[(0, 199)]));
    check(&[(1, true), (9, true)], Some(&[(100, 199), (200, MAX)]));
    // A shard that is younger than the list covers none of its keys.
    check(&[(11, false)], Some(&[]));
}

#[test]
fn a_child_of_an_open_parent_is_refused_or_skipped() {
    let lines = [
        (0, None, None, (0, MAX), (1, OPEN)),
        (1, Some(0), None, (0, 99), (3, OPEN)),
        (2, None, None, (100, MAX), (3, OPEN)),
    ];
    let wrong = Inconsistency::ChildOfOpenParent { child: id(1), parent: id(0) };
    for rows in [vec![], unfinished(&lines, &[2])] {
        for (protocol, start) in [(Kcl2, Latest), (NATIVE, TrimHorizon)] {
            let refused = sync(&graph(&lines), &rows, start, protocol, Refuse);
            assert_eq!(refused, Err(SyncError::InconsistentChild(wrong.clone())));
            let made = sync(&graph(&lines), &rows, start, protocol, Skip).unwrap();
            let expected = if rows.is_empty() { ids([0, 2]) } else { ids([0]) };
            assert_eq!(made.into_iter().map(|new| new.shard).collect::<Vec<_>>(), expected);
        }
    }
}

#[test]
fn rows_are_made_in_the_order_of_birth() {
    // Names and ages disagree here.
    let lines = [
        (3, None, None, (0, 9), (1, OPEN)),
        (1, None, None, (10, 19), (5, OPEN)),
        (2, None, None, (20, 29), (5, OPEN)),
        (0, None, None, (30, MAX), (7, OPEN)),
    ];
    assert_eq!(rows_made(&lines, &[], Latest, Kcl2), [3, 1, 2, 0]);
    assert_eq!(rows_made(&lines, &unfinished(&lines, &[2]), Latest, Kcl2), [3, 1, 0]);
}

#[test]
fn a_crash_between_two_creates_leaves_the_rest_to_the_next_sync() {
    for (lines, rows, _) in FROM_THE_PAST {
        for start in [Latest, TrimHorizon] {
            let mut rows = unfinished(lines, rows);
            let whole = rows_made(lines, &rows, start, Kcl2);
            // Each sync creates its first row and crashes.
            let mut made = Vec::new();
            while let [first, ..] = rows_made(lines, &rows, start, Kcl2)[..] {
                made.push(first);
                rows.push(row(lines, first, start.into()));
            }
            assert_eq!(made, whole, "{start:?}");
        }
    }
}

#[test]
fn a_lost_row_of_an_ended_shards_child_is_made_again() {
    let mut rows = unfinished(A, &[4, 8, 9]);
    rows.push(row(A, 5, Position::ShardEnd));
    let child = [NewLease::child(&shard(A[10]))];
    assert_eq!(child[0].checkpoint, Position::TrimHorizon);
    for protocol in [Kcl2, NATIVE] {
        assert_eq!(sync(&graph(A), &rows, Latest, protocol, Refuse).unwrap(), child);
    }
    assert_eq!(forgotten(&graph(A), &rows), child);
    rows[3].checkpoint = Position::TrimHorizon.into();
    assert_eq!(forgotten(&graph(A), &rows), [], "its row comes when its parent ends");
}

#[test]
fn the_removed_row_of_a_finished_child_stays_away() {
    let at = Position::At { sequence: "1150".parse().unwrap(), sub: 0 };
    let (begin, end) = (Position::TrimHorizon, Position::ShardEnd);
    let check = |rows: &[(u32, Position)], expected: &[u32]| {
        let rows: Vec<_> = rows.iter().map(|(index, at)| row(B, *index, *at)).collect();
        let made = forgotten(&graph(B), &rows);
        let made: Vec<_> = made.iter().map(|new| new.shard.index().unwrap()).collect();
        assert_eq!(made, expected, "{rows:?}");
    };
    // 2 was split into 3 and 4, which were merged into 5.
    check(&[(2, end)], &[3, 4]);
    check(&[(2, end), (4, at)], &[3]);
    // 4 has ended and 5 has its row, but nothing of it is processed yet: 3 may be unread.
    check(&[(2, end), (4, end), (5, begin)], &[3]);
    // 5 passed its gate, so 3 was finished, and its row was removed by an old version of KCL.
    check(&[(2, end), (4, end), (5, at)], &[]);
    check(&[(2, end), (4, end), (6, begin), (7, begin)], &[]);
    check(&[(2, end), (4, end), (8, at)], &[]);
    // The row of a split child is sufficient proof of its parent's end.
    check(&[(5, end), (7, end), (6, at)], &[8]);
    check(&[(5, end), (7, end), (9, begin)], &[]);
    check(&[(0, end), (3, begin)], &[]);
}

#[test]
fn a_cycle_ends_the_search() {
    let lines = [
        (0, Some(1), None, (0, MAX), (1, 2)),
        (1, Some(0), None, (0, MAX), (1, 2)),
        (2, Some(1), None, (0, MAX), (3, OPEN)),
    ];
    for start in [Latest, TrimHorizon] {
        sync(&graph(&lines), &unfinished(A, &[9]), start, Kcl2, Refuse).unwrap();
    }
}
