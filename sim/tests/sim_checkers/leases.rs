//! Tests of the lease checkers: ownership, checkpoints, resumption, liveness.

use crate::story::*;
use anabranch::event::{Event, ShardEvent};
use anabranch_model::ids::ShardId;
use anabranch_model::lease::{Checkpoint, Lease, LeaseKey, LeaseToken};
use anabranch_model::position::Position;
use anabranch_sim::checkers::liveness::{LeaseShares, UnownedSince};
use anabranch_sim::checkers::{QuietPhase, fencing, liveness, resumption};
use anabranch_sim::history::{HistoryEvent, HistoryLine, HostId};
use anabranch_sim::workload::position;
use std::sync::Arc;

#[test]
fn a_shard_has_one_deliverer_at_a_time() {
    let check = |story, expected| check(owned, story, expected);
    check(vec![delivered("a", 1, 1), delivered("a", 1, 2), delivered("b", 2, 3)], None);
    check(
        vec![delivered("a", 1, 1), delivered("b", 2, 2), delivered("a", 1, 2)],
        Some("term 1 of a delivered, after s/shard-0 term 2 of b"),
    );
    check(vec![delivered("a", 1, 1), delivered("b", 1, 1)], Some("term 1 of b delivered"));
    check(vec![delivered("a", 2, 1), delivered("a", 1, 2)], Some("term 1 of a delivered"));
    // The row has advanced, although nothing was delivered under the new term yet.
    let after = |write| vec![took("a", 1, 0), delivered("a", 1, 1), write, delivered("a", 1, 2)];
    check(after(stored("a", 1, 0, 1)), None);
    check(after(took("a", 2, 0)), Some("after the row went on to term 2"));
    check(after(took("b", 2, 0)), Some("after the row went on to term 2"));
    check(after(landed(release("a", 1), row(None, 2, 0))), Some("after the row went on"));
}

#[test]
fn an_owner_that_was_paused_with_its_clock_may_overlap_for_the_rest_of_its_lease_time() {
    let check = |story, expected| check(owned, story, expected);
    // Lines 3 to 6 are a pause, in which b took the lease.
    let overlap = |mut after: Vec<HistoryEvent>| {
        let mut story = vec![took("a", 1, 0), beat("a"), delivered("a", 1, 1)];
        story.extend([took("b", 2, 0), delivered("b", 2, 1), delivered("b", 2, 2), paused(3)]);
        story.append(&mut after);
        story
    };
    check(overlap(vec![delivered("a", 1, 2), delivered("a", 1, 3)]), None);
    // By its own clock, lines 1, 2 and 7 to 11 are a lease time.
    let others = vec![delivered("b", 2, 3); 5];
    let late = others.iter().cloned().chain([delivered("a", 1, 4)]).collect();
    check(overlap(late), Some("term 1 of a delivered, after s/shard-0 term 2 of b"));
    // A pause excuses nothing that happened before it.
    let mut story = vec![took("a", 1, 0), beat("a"), delivered("a", 1, 1), took("b", 2, 0)];
    story.extend([delivered("b", 2, 1), paused(4), delivered("a", 1, 2)]);
    check(story, Some("term 1 of a delivered"));
    // Nor does one before the last sign of life.
    let mut story = vec![took("a", 1, 0), delivered("a", 1, 1), paused(1), beat("a")];
    story.extend([took("b", 2, 0), delivered("b", 2, 1), delivered("a", 1, 2)]);
    check(story, Some("term 1 of a delivered"));
    // The lease time of the worker itself applies: by its clock, 3 ms pass.
    let story = |own_ms| {
        let mut story = vec![joined("a", own_ms), took("a", 1, 0), beat("a")];
        story.extend([delivered("a", 1, 1), took("b", 2, 0), delivered("b", 2, 1), paused(4)]);
        story.push(delivered("a", 1, 2));
        story
    };
    check(story(4), None);
    check(story(3), Some("term 1 of a delivered"));
}

#[test]
fn checkpoints_are_the_holders_and_go_forward_and_stay() {
    let check = |story, expected| check(fencing::check, story, expected);
    check(vec![took("a", 1, 0), stored("a", 1, 0, 5), acknowledged("a", 1, 5)], None);
    check(
        vec![took("a", 1, 0), took("b", 2, 0), stored("a", 1, 0, 5)],
        Some("the lease was b's, term 2"),
    );
    check(
        vec![took("a", 1, 0), landed(release("a", 1), row(None, 2, 0)), stored("a", 1, 0, 5)],
        Some("the lease was nobody's"),
    );
    check(vec![took("a", 1, 0), stored("a", 1, 0, 5), stored("a", 1, 0, 3)], Some("went back"));
    check(vec![took("a", 1, 0), acknowledged("a", 1, 5)], Some("was acknowledged, and nothing"));
    check(
        vec![took("a", 1, 0), stored("a", 1, 0, 3), acknowledged("a", 1, 5)],
        Some("was acknowledged, and"),
    );
    let told = |done| {
        let (shard, at) = (Arc::new(key()), Checkpoint::at(position(done)));
        HistoryEvent::LibraryReported(Event::Shard(ShardEvent::Checkpointed { shard, at }))
    };
    check(vec![took("a", 1, 0), stored("a", 1, 0, 5), told(5)], None);
    check(vec![took("a", 1, 0), told(5)], Some("was acknowledged, and nothing is stored"));
    check(vec![took("a", 1, 0), stored("a", 1, 0, 3), told(5)], Some("was acknowledged, and"));
}

#[test]
fn a_reader_goes_on_where_the_row_stood_and_skips_nothing() {
    let check = |story, expected| check(resumption::check, story, expected);
    check(vec![took("a", 1, 4), began("a", 1, 4), delivered("a", 1, 1)], None);
    check(vec![took("a", 1, 4), began("a", 1, 3)], Some("the row stood at"));
    check(vec![began("a", 1, 0)], Some("no write made that term"));
    check(
        vec![delivered("a", 1, 1), delivered("a", 1, 3)],
        Some("record 3 was delivered right after 1"),
    );
    check(vec![delivered("a", 1, 1), delivered("a", 1, 2), delivered("b", 2, 1)], None);
}

#[test]
fn every_ready_shard_is_delivered_and_load_is_level() {
    let other = LeaseKey::new("s", "shard-1");
    let on = |host, key: &LeaseKey| HistoryLine {
        at_ms: 5,
        host: Some(HostId(host)),
        what: HistoryEvent::Delivered {
            hold: LeaseToken { key: key.clone(), ..hold("a", 1) },
            number: 1,
        },
    };
    let quiet = |level| QuietPhase {
        from_ms: 1,
        until_ms: 9,
        ready: [key(), other.clone()].into(),
        stuck: [].into(),
        hosts: [HostId(0), HostId(1)].into(),
        level,
    };
    let words =
        |lines: &[HistoryLine], level| liveness::check(lines, &quiet(level)).map(|v| v.words);
    assert_eq!(words(&[on(0, &key()), on(1, &other)], true), None);
    let idle = words(&[on(0, &key())], false).expect("shard-1 is idle");
    assert!(idle.contains("nobody delivers s/shard-1"), "{idle}");
    let both = [on(0, &key()), on(0, &other)];
    assert_eq!(words(&both, false), None);
    let uneven = words(&both, true).expect("one host has both");
    assert!(uneven.contains("load is not level"), "{uneven}");
    let stuck = QuietPhase { ready: [].into(), stuck: [key()].into(), ..quiet(false) };
    let stuck = liveness::check(&[], &stuck).expect("shard-0 does not end").words;
    assert!(stuck.contains("s/shard-0 is done, and its row does not say its end"), "{stuck}");
}

#[test]
fn shards_are_shared_by_the_hosts_that_are_up() {
    let row = |shard: &str, parents: &[&str], owner: Option<&str>, ended: bool| {
        let new = anabranch_model::lease::NewLease {
            shard: ShardId::from(shard),
            parents: parents.iter().map(|parent| ShardId::from(*parent)).collect(),
            range: anabranch_model::hash::HashRange::ALL,
            checkpoint: Position::TrimHorizon,
        };
        let at = if ended { Position::ShardEnd } else { Position::TrimHorizon };
        let checkpoint = Checkpoint::at(at);
        Lease { owner: owner.map(worker), checkpoint, ..new.into_lease(&key().stream) }
    };
    let up = || (0..2).map(|host| (HostId(host), Some(worker(&format!("h{host}/1")))));
    let shared = |rows: &[Lease]| LeaseShares::of(rows, up());
    let unowned = |rows: &[Lease]| shared(rows).unowned.into_iter().collect::<Vec<_>>();
    let key = |shard: &str| LeaseKey::new("s", shard);
    let parent = row("shard-0", &[], Some("h0/1"), false);
    assert_eq!(unowned(std::slice::from_ref(&parent)), []);
    // A child waits for its parent, and needs no owner before that is done.
    assert_eq!(unowned(&[parent, row("shard-1", &["shard-0"], None, false)]), []);
    let done = row("shard-0", &[], None, true);
    let child = |owner| row("shard-1", &["shard-0"], owner, false);
    assert_eq!(unowned(&[done.clone(), child(None)]), [key("shard-1")]);
    assert_eq!(unowned(&[done.clone(), child(Some("h2/1"))]), [key("shard-1")]);
    // An earlier run of a host that is up.
    assert_eq!(unowned(&[done.clone(), child(Some("h1/0"))]), [key("shard-1")]);
    assert_eq!(unowned(&[done, child(Some("h1/1"))]), []);
    let owned = |shard| row(shard, &[], Some("h0/1"), false);
    assert!(shared(&[owned("shard-0")]).is_level());
    assert!(!shared(&[owned("shard-0"), owned("shard-1")]).is_level());

    let (mut looks, none) = (UnownedSince::default(), shared(&[]));
    let some = shared(&[row("shard-0", &[], None, false)]);
    for (now_ms, shared, late) in
        [(0, &some, false), (9, &none, false), (10, &some, false), (20, &some, false)]
    {
        assert_eq!(looks.observe(now_ms, shared, 10).is_some(), late, "at {now_ms} ms");
    }
    let words = looks.observe(21, &some, 10).expect("it is late");
    assert!(words.contains("s/shard-0 has no owner since 10 ms"), "{words}");
}
