//! Helpers that build history lines, and assert the verdict of a checker.

use anabranch::event::{Event, LeaseEvent, ShardEvent, ShardStopReason};
use anabranch_model::lease::{
    Checkpoint, Lease, LeaseChange, LeaseKey, LeaseToken, Nonce, StoredRow, WorkerChange, WorkerId,
    Write, WriteOutcome,
};
use anabranch_model::position::Position;
use anabranch_sim::checkers::{order, ownership};
use anabranch_sim::history::{HistoryEvent, HistoryLine, HostId};
use anabranch_sim::record_source::SimRecord;
use anabranch_sim::workload::position;
use std::sync::Arc;

pub(crate) fn key() -> LeaseKey {
    LeaseKey::new("s", "shard-0")
}

pub(crate) fn worker(name: &str) -> WorkerId {
    WorkerId::from(name)
}

pub(crate) fn hold(owner: &str, term: u64) -> LeaseToken {
    LeaseToken { key: key(), owner: worker(owner), term }
}

pub(crate) fn delivered(owner: &str, term: u64, number: u64) -> HistoryEvent {
    HistoryEvent::Delivered { hold: hold(owner, term), number }
}

pub(crate) fn began(owner: &str, term: u64, done: u64) -> HistoryEvent {
    HistoryEvent::Began { hold: hold(owner, term), from: position(done) }
}

/// Returns the row after a write, as the store reported it.
pub(crate) fn row(owner: Option<&str>, term: u64, done: u64) -> WriteOutcome {
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
    WriteOutcome::Done(StoredRow::Lease(Box::new(lease)))
}

pub(crate) fn landed(change: LeaseChange, outcome: WriteOutcome) -> HistoryEvent {
    HistoryEvent::WriteApplied { write: Write::lease(&key(), change, Nonce(1)), outcome }
}

pub(crate) fn took(owner: &str, term: u64, done: u64) -> HistoryEvent {
    let change = LeaseChange::Take { taker: worker(owner), term: term - 1 };
    landed(change, row(Some(owner), term, done))
}

pub(crate) fn stored(owner: &str, term: u64, from: u64, to: u64) -> HistoryEvent {
    let change = LeaseChange::Checkpoint {
        owner: worker(owner),
        term,
        replaces: Checkpoint::at(position(from)),
        to: Checkpoint::at(position(to)),
        pending: None,
        bytes_per_second: None,
    };
    landed(change, row(Some(owner), term, to))
}

pub(crate) fn acknowledged(owner: &str, term: u64, done: u64) -> HistoryEvent {
    HistoryEvent::Checkpointed { hold: hold(owner, term), at: position(done) }
}

pub(crate) fn lines(story: Vec<HistoryEvent>) -> Vec<HistoryLine> {
    let line = |(at, what): (usize, HistoryEvent)| {
        let at_ms = u64::try_from(at).expect("it is small");
        HistoryLine { at_ms, host: Some(HostId(0)), what }
    };
    story.into_iter().enumerate().map(line).collect()
}

pub(crate) type Checker = fn(&[HistoryLine]) -> Option<anabranch_sim::checkers::Violation>;

/// Asserts that the checker finds nothing, or a violation whose description contains `expected`.
pub(crate) fn check(checker: Checker, story: Vec<HistoryEvent>, expected: Option<&str>) {
    let lines = lines(story);
    let words = checker(&lines).map(|violation| violation.words);
    match (&words, expected) {
        (None, None) => {}
        (Some(words), Some(expected)) => assert!(words.contains(expected), "{words}: {expected}"),
        _ => panic!("expected {expected:?}, got {words:?} for {lines:#?}"),
    }
}

/// Runs the order checker with a lease time of seven lines.
pub(crate) fn ordered(lines: &[HistoryLine]) -> Option<anabranch_sim::checkers::Violation> {
    order::check(lines, 7)
}

/// Runs the ownership checker with a lease time of seven lines.
pub(crate) fn owned(lines: &[HistoryLine]) -> Option<anabranch_sim::checkers::Violation> {
    ownership::check(lines, 7)
}

pub(crate) fn beat(owner: &str) -> HistoryEvent {
    let change = WorkerChange::Beat { counter: 1 };
    let write = Write::worker(&worker(owner), change, Nonce(1));
    HistoryEvent::WriteApplied { write, outcome: row(None, 1, 0) }
}

pub(crate) fn joined(owner: &str, lease_time_ms: u64) -> HistoryEvent {
    let lease_time_ms = Some(lease_time_ms);
    let join =
        WorkerChange::Join { host: String::new(), started_ms: 0, reads: None, lease_time_ms };
    let write = Write::worker(&worker(owner), join, Nonce(1));
    HistoryEvent::WriteApplied { write, outcome: row(None, 1, 0) }
}

pub(crate) fn paused(since_ms: u64) -> HistoryEvent {
    HistoryEvent::Paused { since_ms }
}

pub(crate) fn release(owner: &str, term: u64) -> LeaseChange {
    LeaseChange::Release { owner: worker(owner), term }
}

/// Returns record `number` of the only key, in the shard with this name.
pub(crate) fn grain(shard: &str, number: u64) -> Arc<SimRecord> {
    let (shard, at) = (LeaseKey::new("s", shard), position(number));
    Arc::new(SimRecord { key: "k".into(), number, shard, at, bytes: 1, arrived_ms: 0 })
}

pub(crate) fn put(shard: &str, number: u64) -> HistoryEvent {
    HistoryEvent::Put(grain(shard, number))
}

pub(crate) fn of(shard: &str, term: u64) -> LeaseToken {
    LeaseToken { key: LeaseKey::new("s", shard), owner: worker("a"), term }
}

pub(crate) fn handed(shard: &str, number: u64, term: u64) -> HistoryEvent {
    HistoryEvent::Handed { hold: of(shard, term), grain: grain(shard, number) }
}

pub(crate) fn handled(shard: &str, number: u64, term: u64, done: bool) -> HistoryEvent {
    HistoryEvent::Handled { hold: of(shard, term), grain: grain(shard, number), done }
}

pub(crate) fn split() -> HistoryEvent {
    let shard = |name| LeaseKey::new("s", name);
    let opened = vec![shard("shard-1"), shard("shard-2")];
    HistoryEvent::Resharded { closed: vec![shard("shard-0")], opened }
}

pub(crate) fn lost(shard: &str) -> HistoryEvent {
    let lease = LeaseKey::new("s", shard);
    HistoryEvent::LibraryReported(Event::Lease(LeaseEvent::ShardMissing {
        lease,
        successors: Vec::new(),
    }))
}

/// Returns the same line for a stream whose shards and keys have the same names.
pub(crate) fn elsewhere(what: HistoryEvent) -> HistoryEvent {
    let there = |mut grain: Arc<SimRecord>| {
        Arc::make_mut(&mut grain).shard.stream = "t".into();
        grain
    };
    match what {
        HistoryEvent::Put(grain) => HistoryEvent::Put(there(grain)),
        HistoryEvent::Handed { mut hold, grain } => {
            hold.key.stream = "t".into();
            HistoryEvent::Handed { hold, grain: there(grain) }
        }
        HistoryEvent::Handled { mut hold, grain, done } => {
            hold.key.stream = "t".into();
            HistoryEvent::Handled { hold, grain: there(grain), done }
        }
        other => panic!("no line of these stories: {other:?}"),
    }
}

/// Returns lines in which the worker on the host took the shard and received records up to
/// `number`.
pub(crate) fn read(number: u64) -> Vec<HistoryEvent> {
    let grains = (1..=number).map(|number| grain("shard-0", number)).collect();
    vec![took("h0", 1, 0), HistoryEvent::Arrived(grains)]
}

pub(crate) fn stopped() -> HistoryEvent {
    let stopped = ShardEvent::Stopped { shard: Arc::new(key()), why: ShardStopReason::Drained };
    HistoryEvent::LibraryReported(Event::Shard(stopped))
}
