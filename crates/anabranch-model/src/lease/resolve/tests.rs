//! Evidence of a read for each write whose reply was lost.

use super::{Resolution, resolve};
use crate::hash::{HashKey, HashRange};
use crate::lease::{
    Checkpoint, Layout, LeaseChange, LeaseKey, LeaseTable, LeaseToken, NewLease, Nonce, StoredRow,
    StreamChange, WorkerChange, WorkerId, Write, WriteOutcome,
};
use crate::position::Position;
use crate::sequence::SequenceNumber;
use Layout::{Kcl, Native};
use Resolution::{Applied, NotApplied, StillUnknown};

fn key() -> LeaseKey {
    LeaseKey::new("orders", "shardId-000000000001")
}

fn id(name: &str) -> WorkerId {
    WorkerId::from(name)
}

fn at(low: u64) -> Checkpoint {
    let sequence = SequenceNumber::from_limbs(0, 0, low).unwrap();
    Checkpoint::at(Position::At { sequence, sub: 0 })
}

fn start() -> Checkpoint {
    Checkpoint::at(Position::TrimHorizon)
}

fn hold(owner: &str, term: u64) -> LeaseToken {
    LeaseToken { key: key(), owner: id(owner), term }
}

fn take(taker: &str, term: u64, nonce: u64) -> Write {
    Write::lease(&key(), LeaseChange::Take { taker: id(taker), term }, Nonce(nonce))
}

fn name(taker: &str, term: u64, nonce: u64) -> Write {
    Write::lease(&key(), LeaseChange::RequestHandOver { taker: id(taker), term }, Nonce(nonce))
}

fn beat(counter: u64, nonce: u64) -> Write {
    Write::worker(&id("a"), WorkerChange::Beat { counter }, Nonce(nonce))
}

fn fence(counter: u64, nonce: u64) -> Write {
    Write::worker(&id("a"), WorkerChange::Fence { counter }, Nonce(nonce))
}

/// A table with a lease that `a` owns under term 1 and, if the layout has worker rows, the worker
/// `a`.
fn owned(layout: Layout) -> LeaseTable {
    let mut table = LeaseTable::new(layout);
    let range = HashRange::new(HashKey(0), HashKey(9)).unwrap();
    let checkpoint = Position::TrimHorizon;
    let new = NewLease { shard: key().shard, parents: vec![], range, checkpoint };
    let join =
        WorkerChange::Join { host: String::new(), started_ms: 0, reads: None, lease_time_ms: None };
    for write in [
        new.create(&key().stream, Nonce(1)),
        take("a", 0, 2),
        Write::worker(&id("a"), join, Nonce(3)),
        Write::stream(&key().stream, StreamChange::NoteStart { t0_ms: 1, created_ms: 2 }),
    ] {
        assert!(table.apply(&write).is_done() || layout == Kcl);
    }
    table
}

fn read(table: &LeaseTable, write: &Write) -> StoredRow {
    match write {
        Write::Lease { key, .. } => StoredRow::of_lease(table.lease(key)),
        Write::Worker { id, .. } => StoredRow::of_worker(table.worker(id)),
        Write::Stream { stream, .. } => {
            StoredRow::of_stream(table.application().streams.get(stream))
        }
    }
}

/// Checks the resolution of `write` after other writes were applied in order.
fn check(layout: Layout, applied: &[&Write], write: &Write, expected: Resolution) {
    let mut table = owned(layout);
    for other in applied {
        assert!(table.apply(other).is_done(), "{other:?}");
    }
    let resolution = resolve(layout, write, &read(&table, write));
    assert_eq!(resolution, expected, "{layout:?}: {write:?} after {applied:?}");
    // A write that is void for good is refused if it lands; one that is not may land.
    let landed = table.apply(write);
    if resolution == NotApplied {
        assert!(matches!(landed, WriteOutcome::Refused { .. }), "{write:?} landed: {landed:?}");
    }
}

#[test]
fn every_write_is_known_again_when_it_was_applied_and_open_when_it_was_not() {
    for layout in [Native, Kcl] {
        for write in [
            take("b", 1, 10),
            hold("a", 1).release(Nonce(10)),
            hold("a", 1).checkpoint(start(), at(5), None, Nonce(10)),
            hold("a", 1).end(start(), Nonce(10)),
            Write::lease(&key(), LeaseChange::NoteChildren(vec!["c".into()]), Nonce(10)),
        ] {
            check(layout, &[&write], &write, Applied);
            check(layout, &[], &write, StillUnknown);
        }
    }
    let renew = hold("a", 1).renew(Nonce(10));
    check(Kcl, &[&renew], &renew, Applied);
    check(Kcl, &[], &renew, StillUnknown);
    let mark = Write::stream(&key().stream, StreamChange::MarkSynced { created_ms: 2 });
    for write in [name("b", 1, 10), beat(0, 10), fence(0, 10), mark] {
        check(Native, &[&write], &write, Applied);
        check(Native, &[], &write, StillUnknown);
    }
}

#[test]
fn another_workers_write_is_never_taken_for_mine() {
    for layout in [Native, Kcl] {
        let mine = take("b", 1, 10);
        let theirs = take("c", 1, 11);
        check(layout, &[&theirs], &mine, NotApplied);
        let checkpoint = hold("a", 1).checkpoint(start(), at(5), None, Nonce(12));
        check(layout, &[&theirs], &checkpoint, NotApplied);
        check(layout, &[&theirs], &hold("a", 1).release(Nonce(13)), NotApplied);
    }
    // A hand-over to this worker leaves the same owner and term as its take would have, but not by
    // this write.
    let pass = hold("a", 1).hand_over(&id("b"), Nonce(14));
    check(Native, &[&name("b", 1, 9), &pass], &take("b", 1, 10), NotApplied);
}

#[test]
fn another_write_of_mine_is_never_taken_for_this_one() {
    // Two heartbeats for one counter: the first one landed late, so the second one never counts.
    check(Native, &[&beat(0, 10)], &beat(0, 11), NotApplied);
    check(Native, &[&beat(0, 10)], &beat(0, 10), Applied);
    check(Native, &[&fence(0, 20)], &beat(0, 11), NotApplied);
    // A late renewal changed the counter to the value that this checkpoint would have written.
    let checkpoint = hold("a", 1).checkpoint(start(), at(5), None, Nonce(0));
    check(Kcl, &[&hold("a", 1).renew(Nonce(0))], &checkpoint, NotApplied);
    check(Kcl, &[&hold("a", 1).renew(Nonce(0))], &hold("a", 1).end(start(), Nonce(0)), NotApplied);
}

#[test]
fn a_checkpoint_is_known_again_under_another_workers_request() {
    let checkpoint = hold("a", 1).checkpoint(start(), at(5), None, Nonce(10));
    check(Native, &[&checkpoint, &name("b", 1, 11)], &checkpoint, Applied);
    check(Native, &[&name("b", 1, 11)], &checkpoint, StillUnknown);
    let newer = hold("a", 1).checkpoint(start(), at(6), None, Nonce(12));
    check(Native, &[&newer], &checkpoint, NotApplied);
}

#[test]
fn a_pass_is_void_once_the_owner_took_its_row_again_and_not_before() {
    let pass = hold("a", 1).hand_over(&id("b"), Nonce(10));
    check(Native, &[&name("b", 1, 9)], &pass, StillUnknown);
    // The taker may request again, and then a late hand-over lands.
    check(Native, &[], &pass, StillUnknown);
    check(Native, &[&name("b", 1, 9), &hold("a", 1).retake(Nonce(11))], &pass, NotApplied);
}
