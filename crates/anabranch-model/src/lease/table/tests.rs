//! Rules of both layouts by example.

use super::{Layout, LeaseTable};
use crate::hash::{HashKey, HashRange};
use crate::lease::outcome::{StoredRow, WriteRefusal};
use crate::lease::{
    Checkpoint, HandOver, Lease, LeaseChange, LeaseKey, LeaseToken, NewLease, Nonce,
    PendingCheckpoint, StreamChange, WorkerChange, WorkerId, Write,
};
use crate::position::Position;
use crate::sequence::SequenceNumber;
use Layout::{Kcl, Native};
use WriteRefusal::{
    CheckpointBehind, CheckpointMoved, CounterMoved, Exists, Fenced, HandOverRefused, Missing,
    NoOwner, NotEnded, NotOwner, NotRequested, OtherStream, RequestedByOther, StillAlive,
    StillReferenced, TermMoved, Unsupported,
};

fn id(name: &str) -> WorkerId {
    WorkerId::from(name)
}

fn key() -> LeaseKey {
    LeaseKey::new("orders", "shardId-000000000001")
}

fn at(low: u64) -> Checkpoint {
    let sequence = SequenceNumber::from_limbs(0, 0, low).unwrap();
    Checkpoint::at(Position::At { sequence, sub: 0 })
}

fn start() -> Checkpoint {
    Checkpoint::at(Position::TrimHorizon)
}

fn create() -> Write {
    let range = HashRange::new(HashKey(0), HashKey(9)).unwrap();
    let new =
        NewLease { shard: key().shard, parents: vec![], range, checkpoint: Position::TrimHorizon };
    new.create(&key().stream, Nonce(1))
}

fn lease(change: LeaseChange) -> Write {
    Write::lease(&key(), change, Nonce(7))
}

fn take(taker: &str, term: u64) -> Write {
    lease(LeaseChange::Take { taker: id(taker), term })
}

fn name(taker: &str, term: u64) -> Write {
    lease(LeaseChange::RequestHandOver { taker: id(taker), term })
}

fn withdraw(taker: &str, term: u64) -> Write {
    lease(LeaseChange::WithdrawRequest { taker: id(taker), term })
}

fn delete(term: u64) -> Write {
    lease(LeaseChange::Delete { term })
}

fn hold(owner: &str, term: u64) -> LeaseToken {
    LeaseToken { key: key(), owner: id(owner), term }
}

fn worker(name: &str, change: WorkerChange) -> Write {
    Write::worker(&id(name), change, Nonce(7))
}

fn join(name: &str) -> Write {
    let (host, lease_time_ms) = ("h".into(), Some(10_000));
    worker(name, WorkerChange::Join { host, started_ms: 5, reads: None, lease_time_ms })
}

fn beat(counter: u64) -> Write {
    worker("a", WorkerChange::Beat { counter })
}

fn fence(counter: u64) -> Write {
    worker("a", WorkerChange::Fence { counter })
}

fn leave(counter: u64) -> Write {
    worker("a", WorkerChange::Leave { counter })
}

fn gone() -> Write {
    worker("a", WorkerChange::Delete)
}

fn checkpoint(owner: &str, term: u64, from: Checkpoint, to: Checkpoint) -> Write {
    hold(owner, term).checkpoint(from, to, None, Nonce(7))
}

fn end(owner: &str, term: u64, from: Checkpoint) -> Write {
    hold(owner, term).end(from, Nonce(7))
}

fn stream(change: StreamChange) -> Write {
    Write::stream(&key().stream, change)
}

/// Returns a table to which every write of `before` was applied.
fn table(layout: Layout, before: &[Write]) -> LeaseTable {
    let mut table = LeaseTable::new(layout);
    for write in before {
        let outcome = table.apply(write);
        assert!(outcome.is_done(), "{write:?}: {outcome:?}");
    }
    table
}

/// Checks that the last write, after the others, is refused as `expected` or applied. A refusal
/// must leave the table unchanged.
fn check(layout: Layout, writes: &[Write], expected: Option<WriteRefusal>) {
    let (write, before) = writes.split_last().unwrap();
    let mut table = table(layout, before);
    let untouched = table.clone();
    let outcome = table.apply(write);
    assert_eq!(outcome.refusal(), expected, "{layout:?}: {write:?} on {untouched:?}");
    if expected.is_some() {
        assert_eq!(table, untouched, "{layout:?}: {write:?} was refused");
    } else {
        let bumps = u64::from(layout == Native && write.changes_plan());
        let versions = (untouched.application().version, table.application().version);
        assert_eq!(versions.0 + bumps, versions.1, "version after {write:?}");
    }
}

/// Returns the lease after writes that are all applied.
fn after(layout: Layout, writes: &[Write]) -> Lease {
    table(layout, writes).lease(&key()).unwrap().clone()
}

#[test]
fn in_the_native_layout_each_lease_write_needs_its_condition() {
    // A lease that `a` owns under term 1.
    let owned = [create(), take("a", 0)];
    let nonce = Nonce(7);
    let cases: &[(&[Write], Option<WriteRefusal>)] = &[
        (&[create()], Some(Exists)),
        (&[take("b", 1)], None),
        (&[take("a", 1)], None),
        (&[take("b", 0)], Some(TermMoved)),
        (&[take("b", 2)], Some(TermMoved)),
        (&[hold("a", 1).renew(nonce)], Some(Unsupported)),
        (&[hold("a", 1).release(nonce)], None),
        (&[hold("a", 0).release(nonce)], Some(TermMoved)),
        (&[hold("b", 1).release(nonce)], Some(NotOwner)),
        (&[hold("a", 1).release(nonce), hold("a", 2).release(nonce)], Some(NotOwner)),
        (&[name("b", 1)], None),
        (&[name("b", 0)], Some(TermMoved)),
        (&[name("a", 1)], Some(NoOwner)),
        (&[hold("a", 1).release(nonce), name("b", 2)], Some(NoOwner)),
        (&[name("b", 1), name("b", 1)], None),
        (&[name("b", 1), name("c", 1)], Some(RequestedByOther)),
        (&[hold("a", 1).refuse(nonce), name("b", 1)], Some(HandOverRefused)),
        (&[hold("a", 1).refuse(nonce), hold("a", 1).allow_hand_over(nonce), name("b", 1)], None),
        (&[hold("b", 1).refuse(nonce)], Some(NotOwner)),
        (&[hold("a", 0).allow_hand_over(nonce)], Some(TermMoved)),
        (&[withdraw("b", 1)], Some(NotRequested)),
        (&[name("b", 1), withdraw("b", 1)], None),
        (&[name("b", 1), withdraw("c", 1)], Some(NotRequested)),
        (&[name("b", 1), withdraw("b", 0)], Some(TermMoved)),
        (&[hold("a", 1).hand_over(&id("b"), nonce)], Some(NotRequested)),
        (&[name("b", 1), hold("a", 1).hand_over(&id("b"), nonce)], None),
        (&[name("b", 1), hold("a", 1).hand_over(&id("c"), nonce)], Some(NotRequested)),
        (&[name("b", 1), hold("c", 1).hand_over(&id("b"), nonce)], Some(NotOwner)),
        (&[name("b", 1), hold("a", 0).hand_over(&id("b"), nonce)], Some(TermMoved)),
        // The late hand-over of an owner that took its own lease again.
        (&[name("b", 1), take("a", 1), hold("a", 1).hand_over(&id("b"), nonce)], Some(TermMoved)),
        (
            &[name("b", 1), take("a", 1), hold("a", 2).hand_over(&id("b"), nonce)],
            Some(NotRequested),
        ),
        (&[checkpoint("a", 1, start(), at(5))], None),
        (&[checkpoint("b", 1, start(), at(5))], Some(NotOwner)),
        (&[checkpoint("a", 0, start(), at(5))], Some(TermMoved)),
        (&[take("b", 1), checkpoint("a", 1, start(), at(5))], Some(TermMoved)),
        (&[name("b", 1), checkpoint("a", 1, start(), at(5))], None),
        (&[checkpoint("a", 1, at(4), at(5))], Some(CheckpointMoved)),
        (
            &[checkpoint("a", 1, start(), at(5)), checkpoint("a", 1, start(), at(4))],
            Some(CheckpointMoved),
        ),
        (
            &[checkpoint("a", 1, start(), at(5)), checkpoint("a", 1, at(5), at(4))],
            Some(CheckpointBehind),
        ),
        (&[end("a", 1, start())], None),
        (&[end("a", 1, at(1))], Some(CheckpointMoved)),
        (&[end("b", 1, start())], Some(NotOwner)),
        (&[take("b", 1), end("a", 1, start())], Some(TermMoved)),
        (&[delete(1)], Some(NotEnded)),
        (&[end("a", 1, start()), delete(1)], None),
        (&[end("a", 1, start()), delete(0)], Some(TermMoved)),
    ];
    for (writes, expected) in cases {
        check(Native, &[&owned[..], writes].concat(), *expected);
    }
    let range = HashRange::new(HashKey(3), HashKey(4)).unwrap();
    for write in [
        take("a", 0),
        hold("a", 0).release(nonce),
        name("a", 0),
        withdraw("a", 0),
        hold("a", 0).refuse(nonce),
        hold("a", 0).allow_hand_over(nonce),
        hold("a", 0).hand_over(&id("b"), nonce),
        checkpoint("a", 0, start(), at(1)),
        end("a", 0, start()),
        lease(LeaseChange::NoteChildren(vec!["c".into()])),
        lease(LeaseChange::NoteRange(range)),
        delete(0),
    ] {
        check(Native, &[write], Some(Missing));
    }
}

#[test]
fn each_worker_write_needs_its_condition() {
    let cases: &[(&[Write], Option<WriteRefusal>)] = &[
        (&[join("a")], Some(Exists)),
        (&[beat(0)], None),
        (&[beat(1)], Some(CounterMoved)),
        (&[beat(0), beat(0)], Some(CounterMoved)),
        (&[fence(0)], None),
        (&[beat(0), fence(0)], Some(CounterMoved)),
        (&[fence(0), beat(0)], Some(Fenced)),
        (&[fence(0), fence(0)], Some(Fenced)),
        (&[leave(0)], None),
        (&[leave(1)], Some(CounterMoved)),
        (&[leave(0), beat(0)], Some(Fenced)),
        (&[gone()], Some(StillAlive)),
        (&[leave(0), gone()], None),
        (&[fence(0), gone()], None),
        (&[create(), take("a", 0), fence(0), gone()], Some(StillReferenced)),
        (&[create(), take("a", 0), fence(0), take("b", 1), gone()], None),
        (&[fence(0), gone(), beat(0)], Some(Missing)),
        (&[fence(0), join("a")], Some(Exists)),
    ];
    for (writes, expected) in cases {
        check(Native, &[&[join("a")], *writes].concat(), *expected);
    }
    for write in [beat(0), fence(0), leave(0), gone()] {
        check(Native, &[write], Some(Missing));
    }
}

#[test]
fn the_first_start_stays_and_the_mark_belongs_to_one_stream() {
    let note = |t0_ms| stream(StreamChange::NoteStart { t0_ms, created_ms: 3 });
    let mark = |created_ms| stream(StreamChange::MarkSynced { created_ms });
    check(Native, &[note(8)], None);
    check(Native, &[note(8), note(9)], Some(Exists));
    check(Native, &[mark(3)], Some(Missing));
    check(Native, &[note(8), mark(4)], Some(OtherStream));
    check(Native, &[note(8), mark(3)], None);
    check(Native, &[note(8), mark(3), mark(3)], None);
    let facts = table(Native, &[note(8), mark(3)]).application().streams[&key().stream];
    assert!(facts.first_sync_done && facts.t0_ms == 8 && facts.created_ms == 3);
}

#[test]
fn a_term_moves_with_the_owner_and_with_nothing_else() {
    let owned = [create(), take("a", 0)];
    let moved = |more: &[Write]| {
        let lease = after(Native, &[&owned[..], more].concat());
        (lease.owner, lease.term, lease.hand_over)
    };
    let (a, b) = (id("a"), id("b"));
    assert_eq!(moved(&[]), (Some(a.clone()), 1, HandOver::None));
    assert_eq!(
        moved(&[name("b", 1)]),
        (Some(a.clone()), 1, HandOver::Requested { taker: b.clone() })
    );
    assert_eq!(moved(&[checkpoint("a", 1, start(), at(1))]), (Some(a), 1, HandOver::None));
    let pass = hold("a", 1).hand_over(&b, Nonce(7));
    assert_eq!(moved(&[name("b", 1), pass]), (Some(b.clone()), 2, HandOver::None));
    assert_eq!(moved(&[name("c", 1), take("b", 1)]), (Some(b), 2, HandOver::None));
    let release = hold("a", 1).release(Nonce(7));
    assert_eq!(moved(&[name("b", 1), release]), (None, 2, HandOver::None));
}

#[test]
fn a_pending_checkpoint_outlives_its_owner_and_ends_with_the_next_checkpoint() {
    for layout in [Native, Kcl] {
        let pending = PendingCheckpoint {
            position: at(9).lowest(),
            state: Some(bytes::Bytes::from_static(b"half")),
        };
        let prepare = hold("a", 1).checkpoint(start(), start(), Some(pending.clone()), Nonce(7));
        let term = if layout == Native { 1 } else { 2 };
        let prepared = [create(), take("a", 0), prepare];
        let taken = [&prepared[..], &[take("b", term)]].concat();
        assert_eq!(after(layout, &taken).pending, Some(pending), "{layout:?}");
        let done = [&taken[..], &[checkpoint("b", term + 1, start(), at(9))]].concat();
        assert_eq!(after(layout, &done).pending, None, "{layout:?}");
    }
}

#[test]
fn in_kcls_layout_the_counter_is_heart_and_fence() {
    let owned = [create(), take("a", 0)];
    let nonce = Nonce(7);
    let cases: &[(&[Write], Option<WriteRefusal>)] = &[
        (&[create()], Some(Exists)),
        (&[hold("a", 1).renew(nonce)], None),
        (&[hold("a", 0).renew(nonce)], Some(TermMoved)),
        (&[hold("a", 1).renew(nonce), hold("a", 1).renew(nonce)], Some(TermMoved)),
        (&[take("b", 1)], None),
        (&[hold("a", 1).renew(nonce), take("b", 1)], Some(TermMoved)),
        (&[take("b", 1), hold("a", 1).renew(nonce)], Some(TermMoved)),
        (&[take("b", 1), checkpoint("a", 1, start(), at(1))], Some(TermMoved)),
        (&[checkpoint("a", 1, start(), at(1)), hold("a", 1).renew(nonce)], Some(TermMoved)),
        (&[checkpoint("a", 1, at(2), at(1))], Some(CheckpointBehind)),
        // KCL checks the counter only.
        (&[checkpoint("b", 1, at(2), at(3))], None),
        (&[hold("a", 1).release(nonce)], None),
        (&[hold("b", 1).release(nonce)], Some(NotOwner)),
        (&[take("a", 1), hold("a", 1).release(nonce)], Some(TermMoved)),
        (&[end("a", 1, start())], None),
        (&[delete(99)], None),
        // These are ids of workers that do not support hand-over.
        (&[name("b", 1)], Some(NoOwner)),
        (&[withdraw("b", 1)], Some(NotRequested)),
        (&[hold("a", 1).hand_over(&id("b"), nonce)], Some(NotRequested)),
        (&[join("a")], Some(Unsupported)),
        (&[stream(StreamChange::MarkSynced { created_ms: 1 })], Some(Unsupported)),
    ];
    for (writes, expected) in cases {
        check(Kcl, &[&owned[..], writes].concat(), *expected);
    }
    check(Kcl, &[take("a", 0)], Some(Missing));
}

#[test]
fn in_kcls_layout_leases_are_handed_over_between_workers_whose_ids_say_so() {
    let [a, b, c] = ["a", "b", "c"].map(|name| WorkerId::of_kcl_join(name, 1, 10_000));
    let [a, b, c] = [&a, &b, &c].map(WorkerId::as_str);
    let owned = [create(), take(a, 0)];
    let nonce = Nonce(7);
    let pass = |term| hold(a, term).hand_over(&id(b), nonce);
    let renew = hold(a, 1).renew(nonce);
    let cases: &[(&[Write], Option<WriteRefusal>)] = &[
        (&[name(b, 1)], None),
        (&[name(b, 0)], Some(TermMoved)),
        (&[renew.clone(), name(b, 1)], Some(TermMoved)),
        (&[name(a, 1)], Some(NoOwner)),
        (&[take("java", 1), name(b, 2)], Some(NoOwner)),
        (&[hold(a, 1).release(nonce), name(b, 2)], Some(NoOwner)),
        (&[name(b, 1), name(b, 1)], None),
        (&[name(b, 1), name(c, 1)], Some(RequestedByOther)),
        (&[name(b, 1), renew.clone(), name(c, 2)], Some(RequestedByOther)),
        (&[name(b, 1), withdraw(c, 1)], Some(NotRequested)),
        (&[name(b, 1), withdraw(b, 1), name(c, 1)], None),
        (&[name(b, 1), renew.clone(), withdraw(b, 1)], Some(TermMoved)),
        (&[name(b, 1), pass(1)], None),
        (&[name(b, 1), renew.clone(), pass(1)], Some(TermMoved)),
        (&[name(b, 1), renew.clone(), pass(2)], None),
        (&[pass(1)], Some(NotRequested)),
        (&[name(c, 1), pass(1)], Some(NotRequested)),
        (&[name(b, 1), hold(c, 1).hand_over(&id(b), nonce)], Some(NotOwner)),
        (&[name(b, 1), withdraw(b, 1), pass(1)], Some(NotRequested)),
        (&[name(b, 1), take(a, 1), pass(2)], Some(NotRequested)),
        (
            &[name(b, 1), take("java", 1), take(c, 2), hold(c, 3).hand_over(&id(b), nonce)],
            Some(NotRequested),
        ),
        (&[hold(a, 1).refuse(nonce), name(b, 2)], Some(HandOverRefused)),
        (&[hold(c, 1).refuse(nonce)], Some(NotOwner)),
        (&[name(b, 1), hold(a, 1).refuse(nonce), pass(2)], Some(NotRequested)),
        (&[hold(a, 1).refuse(nonce), hold(a, 2).allow_hand_over(nonce), name(b, 3)], None),
        (&[hold(a, 1).refuse(nonce), take(c, 2), name(b, 3)], None),
    ];
    for (writes, expected) in cases {
        check(Kcl, &[&owned[..], writes].concat(), *expected);
    }
    let row = after(Kcl, &[&owned[..], &[name(b, 1)]].concat());
    assert_eq!(row.term, 1, "a name is no renewal");
    let row = after(Kcl, &[&owned[..], &[name(b, 1), pass(1)]].concat());
    assert_eq!((row.owner, row.term, row.hand_over), (Some(id(b)), 3, HandOver::None));
    assert_eq!(row.owner_switches, 1, "as if it had been taken");
}

#[test]
fn kcls_row_counts_switches_and_keeps_one_position() {
    let lanes = Checkpoint::of_lanes(vec![at(8).lowest(), at(3).lowest()]).unwrap();
    let taken = [create(), take("a", 0), take("b", 1), take("b", 2), take("a", 3)];
    let row = after(Kcl, &taken);
    assert_eq!((row.term, row.owner_switches, row.nonce), (4, 2, Nonce(0)));
    let row = after(Kcl, &[&taken[..], &[checkpoint("a", 4, start(), lanes)]].concat());
    assert_eq!((row.term, row.owner_switches, row.checkpoint), (5, 0, at(3)));
}

#[test]
fn an_answer_carries_the_row_and_what_the_owner_presents_next() {
    for (layout, next) in [(Native, 1), (Kcl, 2)] {
        let mut table = table(layout, &[create()]);
        let mine = table.apply(&take("a", 0)).token().unwrap();
        assert_eq!(mine, hold("a", 1));
        let outcome = table.apply(&mine.checkpoint(start(), at(1), None, Nonce(9)));
        assert_eq!(outcome.token(), Some(hold("a", next)), "{layout:?}");
        let refused = table.apply(&take("b", 0));
        let now = Some(StoredRow::of_lease(table.lease(&key())));
        assert_eq!(refused, super::WriteOutcome::Refused { why: TermMoved, now });
    }
}
