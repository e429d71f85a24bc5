//! The checkers themselves, on histories written by hand: what they let pass, and what they notice.

use anabranch_model::lease::{
    Checkpoint, Hold, Lease, LeaseChange, LeaseKey, Nonce, Outcome, Stored, WorkerId, Write,
};
use anabranch_model::position::Position;
use anabranch_sim::checkers::{Quiet, fencing, liveness, ownership, resumption};
use anabranch_sim::history::{HostId, Line, What};
use anabranch_sim::workload::position;

fn key() -> LeaseKey {
    LeaseKey::new("s", "shard-0")
}

fn worker(name: &str) -> WorkerId {
    WorkerId::from(name)
}

fn hold(owner: &str, term: u64) -> Hold {
    Hold { key: key(), owner: worker(owner), term }
}

fn delivered(owner: &str, term: u64, number: u64) -> What {
    What::Delivered { hold: hold(owner, term), number }
}

fn began(owner: &str, term: u64, done: u64) -> What {
    What::Began { hold: hold(owner, term), from: position(done) }
}

/// The row after a write, as the store told.
fn row(owner: Option<&str>, term: u64, done: u64) -> Outcome {
    let new = anabranch_model::lease::NewLease {
        shard: key().shard,
        parents: Vec::new(),
        range: anabranch_model::hash::HashRange::ALL,
        checkpoint: Position::TrimHorizon,
    };
    let lease = Lease {
        owner: owner.map(worker),
        term,
        checkpoint: Checkpoint::at(position(done)),
        ..new.into_lease(&key().stream)
    };
    Outcome::Done(Stored::Lease(Box::new(lease)))
}

fn landed(change: LeaseChange, outcome: Outcome) -> What {
    What::Landed { write: Write::lease(&key(), change, Nonce(1)), outcome }
}

fn took(owner: &str, term: u64, done: u64) -> What {
    let change = LeaseChange::Take { taker: worker(owner), term: term - 1 };
    landed(change, row(Some(owner), term, done))
}

fn stored(owner: &str, term: u64, from: u64, to: u64) -> What {
    let change = LeaseChange::Checkpoint {
        owner: worker(owner),
        term,
        replaces: Checkpoint::at(position(from)),
        to: Checkpoint::at(position(to)),
        pending: None,
    };
    landed(change, row(Some(owner), term, to))
}

fn acknowledged(owner: &str, term: u64, done: u64) -> What {
    What::Checkpointed { hold: hold(owner, term), at: position(done) }
}

fn lines(story: Vec<What>) -> Vec<Line> {
    let line = |(at, what): (usize, What)| {
        let at_ms = u64::try_from(at).expect("it is small");
        Line { at_ms, host: Some(HostId(0)), what }
    };
    story.into_iter().enumerate().map(line).collect()
}

type Checker = fn(&[Line]) -> Option<anabranch_sim::checkers::Violation>;

/// The checker says nothing, or something with these words in it.
fn check(checker: Checker, story: Vec<What>, expected: Option<&str>) {
    let lines = lines(story);
    let words = checker(&lines).map(|violation| violation.words);
    match (&words, expected) {
        (None, None) => {}
        (Some(words), Some(expected)) => assert!(words.contains(expected), "{words}: {expected}"),
        _ => panic!("expected {expected:?}, got {words:?} for {lines:#?}"),
    }
}

#[test]
fn a_shard_has_one_deliverer_at_a_time() {
    let check = |story, expected| check(ownership::check, story, expected);
    check(vec![delivered("a", 1, 1), delivered("a", 1, 2), delivered("b", 2, 3)], None);
    check(
        vec![delivered("a", 1, 1), delivered("b", 2, 2), delivered("a", 1, 2)],
        Some("term 1 of a delivered, after shard-0 term 2 of b"),
    );
    check(vec![delivered("a", 1, 1), delivered("b", 1, 1)], Some("term 1 of b delivered"));
    check(vec![delivered("a", 2, 1), delivered("a", 1, 2)], Some("term 1 of a delivered"));
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
}

fn release(owner: &str, term: u64) -> LeaseChange {
    LeaseChange::Release { owner: worker(owner), term }
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
    let on = |host, key: &LeaseKey| Line {
        at_ms: 5,
        host: Some(HostId(host)),
        what: What::Delivered { hold: Hold { key: key.clone(), ..hold("a", 1) }, number: 1 },
    };
    let quiet = |level| Quiet {
        from_ms: 1,
        until_ms: 9,
        ready: [key(), other.clone()].into(),
        hosts: [HostId(0), HostId(1)].into(),
        level,
    };
    let words = |lines: &[Line], level| liveness::check(lines, &quiet(level)).map(|v| v.words);
    assert_eq!(words(&[on(0, &key()), on(1, &other)], true), None);
    let idle = words(&[on(0, &key())], false).expect("shard-1 is idle");
    assert!(idle.contains("nobody delivers s/shard-1"), "{idle}");
    let both = [on(0, &key()), on(0, &other)];
    assert_eq!(words(&both, false), None);
    let uneven = words(&both, true).expect("one host has both");
    assert!(uneven.contains("load is not level"), "{uneven}");
}
