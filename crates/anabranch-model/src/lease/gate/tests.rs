//! The gate by example, with a merge whose other parent has no row yet.

use super::{Gate, GateEvidence, GateListing, RowState, WaitReason, gate};
use crate::lease::listing::{LeaseListing, UnreadableRow};
use crate::lease::row::{Lease, NewLease};
use crate::lineage::graphs::{Line, MAX, OPEN, graph, id, ids, shard};
use crate::position::Position;
use RowState::{Absent, Ended, Unfinished};
use std::sync::Arc;

const G: u32 = 0;
const X: u32 = 1;
const A: u32 = 2;
const B: u32 = 3;
const M: u32 = 4;

/// G is split into A and B; B and X are merged into M.
const STREAM: &[Line] = &[
    (G, None, None, (0, 199), (1, 10)),
    (X, None, None, (200, MAX), (1, 20)),
    (A, Some(G), None, (0, 99), (11, OPEN)),
    (B, Some(G), None, (100, 199), (11, 20)),
    (M, Some(B), Some(X), (100, MAX), (21, OPEN)),
];

/// Removes trimmed shards from a list.
fn trimmed(lines: &[Line], gone: &[u32]) -> Vec<Line> {
    lines.iter().copied().filter(|line| !gone.contains(&line.0)).collect()
}

fn row(lines: &[Line], index: u32, seen: RowState) -> Lease {
    let line = lines.iter().find(|line| line.0 == index).unwrap();
    let checkpoint = if seen == Ended { Position::ShardEnd } else { Position::TrimHorizon };
    NewLease::new(&shard(*line), checkpoint).into_lease(&"s".into())
}

fn listed(list: &[Line], rows: &[Lease]) -> Arc<GateListing> {
    listed_beside(list, rows, &[])
}

/// A list and a scan with unreadable rows.
fn listed_beside(list: &[Line], rows: &[Lease], unreadable: &[u32]) -> Arc<GateListing> {
    let unreadable = ids(unreadable.iter().copied()).into_iter();
    let unreadable =
        unreadable.map(|key| UnreadableRow { key, why: "by the test".into() }).collect();
    Arc::new(GateListing::new(graph(list), &LeaseListing { rows: rows.to_vec(), unreadable }))
}

/// Runs the gate as a driver does, in a world that does not change, until it opens or waits.
fn pass(child: &Line, list: &[Line], rows: &[Lease]) -> (Gate, Vec<u32>) {
    let child = shard(*child);
    let parents: Vec<_> = child.parents().cloned().collect();
    let mut evidence = GateEvidence::default();
    let mut reads = Vec::new();
    loop {
        match gate(&child.id, &parents, &evidence) {
            Gate::NeedList => evidence.listed(listed(list, rows)),
            Gate::NeedReads(next) => {
                let row = rows.iter().find(|row| row.key.shard == next[0]);
                let seen =
                    row.map_or(Absent, |row| if row.is_ended() { Ended } else { Unfinished });
                reads.push(next[0].index().unwrap());
                evidence.saw(next[0].clone(), seen);
            }
            decided => return (decided, reads),
        }
        assert!(reads.len() < 100, "the gate asks for ever");
    }
}

fn wait(parent: u32, why: WaitReason) -> Gate {
    Gate::Wait { parent: id(parent), why }
}

fn check(what: &str, child: u32, gone: &[u32], rows: &[(u32, RowState)], expected: &Gate) {
    let rows: Vec<_> = rows.iter().map(|(index, seen)| row(STREAM, *index, *seen)).collect();
    let line = STREAM.iter().find(|line| line.0 == child).unwrap();
    assert_eq!(pass(line, &trimmed(STREAM, gone), &rows).0, *expected, "{what}");
}

#[test]
fn a_child_starts_when_each_parent_has_ended() {
    use WaitReason::{AncestorUnfinished, ChildNotListed, ParentUnfinished, UnlistedUnfinished};
    let of_g = || AncestorUnfinished(id(G));
    check("a shard without parents", G, &[], &[], &Gate::Open);
    check("both parents ended", M, &[], &[(B, Ended), (X, Ended)], &Gate::Open);
    check("one is short", M, &[], &[(B, Ended), (X, Unfinished)], &wait(X, ParentUnfinished));
    check("the other is short", M, &[], &[(B, Unfinished), (X, Ended)], &wait(B, ParentUnfinished));
    check(
        "X drained, G still read, B without a row",
        M,
        &[],
        &[(G, Unfinished), (X, Ended)],
        &wait(B, of_g()),
    );
    check(
        "G is at its end, so B's row was made",
        M,
        &[],
        &[(G, Ended), (B, Unfinished), (X, Ended)],
        &wait(B, ParentUnfinished),
    );
    check(
        "the application began at X and A, after B",
        M,
        &[],
        &[(A, Unfinished), (X, Ended)],
        &Gate::Open,
    );
    check("no row above the child at all", M, &[], &[], &Gate::Open);
    check("G is trimmed and has no row", M, &[G], &[(X, Ended)], &Gate::Open);
    check(
        "G is trimmed and its row is short",
        M,
        &[G],
        &[(G, Unfinished), (X, Ended)],
        &wait(B, UnlistedUnfinished(id(G))),
    );
    check("G is trimmed and its row ended", M, &[G], &[(G, Ended), (X, Ended)], &Gate::Open);
    check("B is trimmed", M, &[G, B], &[(X, Ended)], &Gate::Open);
    check(
        "B is trimmed and its row is short",
        M,
        &[G, B],
        &[(B, Unfinished), (X, Ended)],
        &wait(B, ParentUnfinished),
    );
    check("both parents are trimmed", M, &[G, B, X], &[], &Gate::Open);
    check("both trimmed, one row ended", M, &[G, B, X], &[(X, Ended)], &Gate::Open);
    check("the child is not listed", M, &[M], &[(X, Ended)], &wait(B, ChildNotListed));
    check("nothing is listed", M, &[G, X, A, B, M], &[], &wait(B, ChildNotListed));
}

#[test]
fn a_lone_adjacent_parent_is_waited_for() {
    let lines = [(0, None, None, (0, MAX), (1, 2)), (1, None, Some(0), (0, 9), (3, OPEN))];
    for (seen, expected) in
        [(Unfinished, wait(0, WaitReason::ParentUnfinished)), (Ended, Gate::Open)]
    {
        assert_eq!(pass(&lines[1], &lines, &[row(&lines, 0, seen)]).0, expected);
    }
    assert_eq!(pass(&lines[1], &lines, &[]).0, Gate::Open);
}

#[test]
fn rows_are_read_from_the_oldest_ancestor_to_the_parent() {
    // Each parent once, then the list, then from the oldest ancestor down to the parent without a
    // row.
    let rows = [row(STREAM, X, Ended)];
    assert_eq!(pass(&STREAM[4], STREAM, &rows), (Gate::Open, vec![B, X, G, B]));
    // The parents' rows suffice: no list and no further reads.
    let rows = [row(STREAM, X, Ended), row(STREAM, B, Ended)];
    assert_eq!(pass(&STREAM[4], STREAM, &rows), (Gate::Open, vec![B, X]));
    // An unfinished ancestor ends the search, and an ended one is not read again.
    let deep: Vec<Line> = (0..6u32)
        .map(|i| (i, i.checked_sub(1), None, (0, MAX), (u64::from(i) + 1, u64::from(i) + 1)))
        .collect();
    let rows = [row(&deep, 2, Unfinished)];
    let why = WaitReason::AncestorUnfinished(id(2));
    assert_eq!(pass(&deep[5], &deep, &rows), (wait(4, why), vec![4, 0, 1, 2]));
    assert_eq!(pass(&deep[5], &deep, &[]), (Gate::Open, vec![4, 0, 1, 2, 3, 4]));
    let rows = [row(&deep, 2, Ended)];
    assert_eq!(pass(&deep[5], &deep, &rows), (Gate::Open, vec![4, 0, 1, 3, 4]));
    // A row that is missing in a scan may have been created and ended since.
    let mut evidence = GateEvidence::default();
    evidence.listed(listed(&deep, &[]));
    let decide = |evidence: &_| gate(&id(5), &ids([4]), evidence);
    assert_eq!(decide(&evidence), Gate::NeedReads(ids([0, 1, 2, 3, 4])));
    evidence.saw(id(0), Absent);
    evidence.saw(id(1), Absent);
    evidence.saw(id(2), Unfinished);
    assert_eq!(decide(&evidence), wait(4, WaitReason::AncestorUnfinished(id(2))));
}

/// G was split into K and another shard, and K into H and another; H and X are merged into M. G and
/// K are trimmed, and G is still being read under an unreadable row.
#[test]
fn an_unreadable_row_of_a_trimmed_ancestor_may_be_unfinished() {
    const K: u32 = 2;
    const H: u32 = 5;
    const M: u32 = 8;
    let list = [
        (X, None, None, (200, MAX), (1, 30)),
        (3, Some(G), None, (0, 99), (11, OPEN)),
        (4, Some(K), None, (100, 149), (21, OPEN)),
        (H, Some(K), None, (150, 199), (21, 30)),
        (M, Some(H), Some(X), (150, MAX), (31, OPEN)),
    ];
    let of_x = [row(&list, X, Ended)];
    let decide = |unreadable: &[u32], reads: &[(u32, RowState)]| {
        let mut evidence = GateEvidence::default();
        evidence.listed(listed_beside(&list, &of_x, unreadable));
        for (shard, seen) in reads {
            evidence.saw(id(*shard), *seen);
        }
        gate(&id(M), &ids([H, X]), &evidence)
    };
    let absent = [(G, Absent), (K, Absent), (H, Absent)];
    assert_eq!(decide(&[], &absent), Gate::Open);
    assert_eq!(decide(&[G], &absent), wait(H, WaitReason::Unreadable(id(G))));
    assert_eq!(decide(&[K], &absent), wait(H, WaitReason::Unreadable(id(K))));
    // A younger shard is no ancestor.
    assert_eq!(decide(&[6], &absent), Gate::Open);
    // Its own row, by the scan or by a read.
    assert_eq!(decide(&[H], &[]), wait(H, WaitReason::Unreadable(id(H))));
    assert_eq!(decide(&[], &[(H, RowState::Unreadable)]), wait(H, WaitReason::Unreadable(id(H))));
}

#[test]
fn an_unreadable_row_of_a_listed_ancestor_may_be_unfinished() {
    let of_x = [row(STREAM, X, Ended)];
    let decide = |unreadable: &[u32], reads: &[(u32, RowState)]| {
        let mut evidence = GateEvidence::default();
        evidence.listed(listed_beside(STREAM, &of_x, unreadable));
        for (shard, seen) in reads {
            evidence.saw(id(*shard), *seen);
        }
        gate(&id(M), &ids([B, X]), &evidence)
    };
    let expected = wait(B, WaitReason::Unreadable(id(G)));
    assert_eq!(decide(&[G], &[]), expected);
    assert_eq!(decide(&[], &[(G, RowState::Unreadable)]), expected);
    assert_eq!(decide(&[A], &[(G, Absent), (B, Absent)]), Gate::Open);
}

fn after_list(reads: &[(u32, RowState)]) -> GateEvidence {
    let mut evidence = GateEvidence::default();
    evidence.saw(id(X), Ended);
    evidence.listed(listed(STREAM, &[]));
    for (index, seen) in reads {
        evidence.saw(id(*index), *seen);
    }
    evidence
}

#[test]
fn a_parent_read_before_its_ancestors_proves_nothing() {
    let decide = |reads: &[_]| gate(&id(M), &ids([B, X]), &after_list(reads));
    // B was read, then G created B's row and ended.
    assert_eq!(decide(&[(B, Absent), (G, Ended)]), Gate::NeedReads(ids([B])));
    assert_eq!(decide(&[(B, Absent), (G, Ended), (B, Absent)]), Gate::Open);
    assert_eq!(
        decide(&[(B, Absent), (G, Ended), (B, Unfinished)]),
        wait(B, WaitReason::ParentUnfinished)
    );
    assert_eq!(decide(&[(G, Ended), (B, Absent)]), Gate::Open);
    assert_eq!(decide(&[]), Gate::NeedReads(ids([G, B])));
}

#[test]
fn a_list_makes_earlier_reads_void_but_for_ends() {
    let mut evidence = GateEvidence::default();
    evidence.saw(id(G), Absent);
    evidence.saw(id(B), Absent);
    evidence.saw(id(X), Ended);
    evidence.listed(listed(STREAM, &[]));
    assert_eq!(gate(&id(M), &ids([B, X]), &evidence), Gate::NeedReads(ids([G, B])));
}

#[test]
fn the_scan_after_the_list_tells_of_trimmed_parents_without_a_single_read() {
    let list = trimmed(STREAM, &[G, B, X]);
    let unreadable = |shard| WaitReason::Unreadable(id(shard));
    for (rows, bad, expected) in [
        (&[][..], &[][..], Gate::Open),
        (&[(B, Ended)], &[], Gate::Open),
        (&[(B, Ended), (X, Ended)], &[], Gate::Open),
        (&[(X, Unfinished)], &[], wait(X, WaitReason::ParentUnfinished)),
        (&[(B, Unfinished), (X, Ended)], &[], wait(B, WaitReason::ParentUnfinished)),
        (&[(X, Ended)], &[B], wait(B, unreadable(B))),
        (&[(B, Ended)], &[X], wait(X, unreadable(X))),
        // Its keys are not those of the parents, or it would be listed as their parent.
        (&[], &[A], Gate::Open),
    ] {
        let rows: Vec<_> = rows.iter().map(|(shard, seen)| row(STREAM, *shard, *seen)).collect();
        let mut evidence = GateEvidence::default();
        evidence.listed(listed_beside(&list, &rows, bad));
        assert_eq!(gate(&id(M), &ids([B, X]), &evidence), expected);
    }
}

#[test]
fn a_trimmed_parents_row_is_looked_for_after_the_list() {
    let mut evidence = GateEvidence::default();
    evidence.saw(id(B), Absent);
    evidence.saw(id(X), Ended);
    assert_eq!(gate(&id(M), &ids([B, X]), &evidence), Gate::NeedList);
    let still_read = row(STREAM, B, Unfinished);
    evidence.listed(listed(&trimmed(STREAM, &[G, B]), &[still_read]));
    let expected = wait(B, WaitReason::ParentUnfinished);
    assert_eq!(gate(&id(M), &ids([B, X]), &evidence), expected);
}

#[test]
fn an_unlisted_row_without_a_range_may_share_any_key() {
    let gone = trimmed(STREAM, &[G]);
    let line = (9, None, None, (0, 50), (1, 2));
    let new = NewLease::new(&shard(line), Position::TrimHorizon);
    let elsewhere = new.into_lease(&"s".into());
    assert_eq!(pass(&STREAM[4], &gone, std::slice::from_ref(&elsewhere)).0, Gate::Open);
    let anywhere = Lease { range: None, ..elsewhere };
    let expected = wait(B, WaitReason::UnlistedUnfinished(id(9)));
    assert_eq!(pass(&STREAM[4], &gone, &[anywhere]).0, expected);
}
