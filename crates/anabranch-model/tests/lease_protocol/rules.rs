//! The store of the explored world: small values, changed by the library's own transitions.
//!
//! A row is expanded to the real one, changed by the real rule and packed again. Each pair of row
//! and write is computed once.

use crate::explore::Mix;
use crate::flaw::Flaw;
use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::lease::table::native;
use anabranch_model::lease::{
    Checkpoint, HandOver, Layout, Lease, LeaseKey, NewLease, Nonce, Resolution, StoredRow,
    WorkerId, WorkerRow, WorkerState, resolve,
};
use anabranch_model::lease::{LeaseChange, WorkerChange, Write};
use anabranch_model::position::Position;
use anabranch_model::sequence::SequenceNumber;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

/// A worker id: two for each of two workers, one per join.
pub(crate) type Id = u8;

/// The end of a shard: the last of the checkpoints 0, 1 and the end.
pub(crate) const END: u8 = 2;

/// A worker's row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum WorkerRowState {
    Absent,
    Alive(u8),
    Fenced(u8),
}

/// A lease row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Row {
    pub(crate) owner: Option<Id>,
    pub(crate) term: u8,
    pub(crate) named: Option<Id>,
    pub(crate) checkpoint: u8,
    /// Nonce of the last write: the index of its content in the list of all writes seen.
    pub(crate) last: u16,
}

/// A write to a lease row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Change {
    Take { by: Id, term: u8 },
    Release { by: Id, term: u8 },
    Name { by: Id, term: u8 },
    Withdraw { by: Id, term: u8 },
    Pass { by: Id, term: u8, to: Id },
    Checkpoint { by: Id, term: u8, from: u8, to: u8 },
    End { by: Id, term: u8, from: u8 },
}

/// A write to a worker's row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum WorkerWrite {
    Join,
    Beat(u8),
    Fence(u8),
    Leave(u8),
    Delete,
}

/// Cache of computed results.
type RuleCache<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

/// The real rules, applied to small values.
pub(crate) struct Rules {
    flaw: Flaw,
    nonces: RefCell<HashMap<Change, u16>>,
    leases: RefCell<RuleCache<(Row, Change), Option<Row>>>,
    hearts: RefCell<RuleCache<(WorkerRowState, Id, WorkerWrite), Option<WorkerRowState>>>,
}

impl Rules {
    pub(crate) fn new(flaw: Flaw) -> Self {
        Self {
            flaw,
            nonces: RefCell::default(),
            leases: RefCell::default(),
            hearts: RefCell::default(),
        }
    }

    /// Returns the row after a write, or `None` if it was refused.
    pub(crate) fn lease(&self, row: Row, change: Change) -> Option<Row> {
        let key = (row, change);
        if let Some(known) = self.leases.borrow().get(&key) {
            return *known;
        }
        let nonce = self.nonce(change);
        let (row, doctored) = self.flaw.doctor(row, change);
        let before = unpack(row);
        let after = native::lease_after(&before.key, &real(doctored), nonce, Some(&before));
        let after = after.ok().map(|after| pack(&after.expect("no row is deleted here")));
        self.leases.borrow_mut().insert(key, after);
        after
    }

    /// Returns the worker's row after a write, or `None` if it was refused.
    pub(crate) fn heart(
        &self,
        heart: WorkerRowState,
        id: Id,
        pulse: WorkerWrite,
    ) -> Option<WorkerRowState> {
        let key = (heart, id, pulse);
        if let Some(known) = self.hearts.borrow().get(&key) {
            return *known;
        }
        let (heart, doctored) = self.flaw.doctor_pulse(heart, pulse);
        let before = unpack_heart(heart, id);
        let change = real_pulse(doctored);
        let after = native::worker_after(&worker(id), &change, beat_nonce(pulse), before.as_ref());
        let after = after.ok().map(|after| match after {
            None => WorkerRowState::Absent,
            Some(worker) if worker.state == WorkerState::Alive => {
                WorkerRowState::Alive(small(worker.counter))
            }
            Some(worker) => WorkerRowState::Fenced(small(worker.counter)),
        });
        self.hearts.borrow_mut().insert(key, after);
        after
    }

    /// Returns the result of resolving a write by a read-back of the lease.
    pub(crate) fn resolve_lease(&self, row: Row, change: Change) -> Resolution {
        if self.flaw == Flaw::ReadBackComparesTheCounterOnly {
            return counter_only(row, change);
        }
        let write = Write::lease(&key(), real(change), self.nonce(change));
        resolve(Layout::Native, &write, &StoredRow::of_lease(Some(&unpack(row))))
    }

    /// Returns the nonce of a write. A retry is the same write, so the content determines it.
    fn nonce(&self, change: Change) -> Nonce {
        let mut nonces = self.nonces.borrow_mut();
        let next = u16::try_from(nonces.len() + 1).expect("there are few writes");
        Nonce(u64::from(*nonces.entry(change).or_insert(next)))
    }
}

/// Returns the result of resolving a write by a read-back of the worker row.
pub(crate) fn resolve_heart(heart: WorkerRowState, id: Id, pulse: WorkerWrite) -> Resolution {
    let write = Write::worker(&worker(id), real_pulse(pulse), beat_nonce(pulse));
    resolve(Layout::Native, &write, &StoredRow::of_worker(unpack_heart(heart, id).as_ref()))
}

fn unpack(row: Row) -> Lease {
    let range = HashRange::new(HashKey(0), HashKey(1)).expect("0 is below 1");
    let new = NewLease { shard: key().shard, parents: vec![], range, checkpoint: at(0) };
    Lease {
        owner: row.owner.map(worker),
        term: row.term.into(),
        hand_over: row
            .named
            .map_or(HandOver::None, |taker| HandOver::Requested { taker: worker(taker) }),
        checkpoint: at(row.checkpoint).into(),
        nonce: Nonce(row.last.into()),
        ..new.into_lease(&key().stream)
    }
}

fn pack(lease: &Lease) -> Row {
    Row {
        owner: lease.owner.as_ref().map(id_of),
        term: small(lease.term),
        named: match &lease.hand_over {
            HandOver::Requested { taker } => Some(id_of(taker)),
            _ => None,
        },
        checkpoint: (0..=END)
            .find(|i| lease.checkpoint == at(*i))
            .expect("no other checkpoint is written"),
        last: u16::try_from(lease.nonce.0).expect("there are few writes"),
    }
}

/// Implements the flaw: a write counts as applied if the counter has the value it would have
/// produced.
fn counter_only(row: Row, change: Change) -> Resolution {
    let expected = match change {
        Change::Take { term, .. } | Change::Release { term, .. } | Change::Pass { term, .. } => {
            term + 1
        }
        Change::Name { term, .. }
        | Change::Withdraw { term, .. }
        | Change::Checkpoint { term, .. }
        | Change::End { term, .. } => term,
    };
    if row.term == expected { Resolution::Applied } else { Resolution::NotApplied }
}

fn real(change: Change) -> LeaseChange {
    let step = |id| worker(id);
    match change {
        Change::Take { by, term } => LeaseChange::Take { taker: step(by), term: term.into() },
        Change::Release { by, term } => LeaseChange::Release { owner: step(by), term: term.into() },
        Change::Name { by, term } => {
            LeaseChange::RequestHandOver { taker: step(by), term: term.into() }
        }
        Change::Withdraw { by, term } => {
            LeaseChange::WithdrawRequest { taker: step(by), term: term.into() }
        }
        Change::Pass { by, term, to } => {
            LeaseChange::HandOver { owner: step(by), term: term.into(), to: step(to) }
        }
        Change::Checkpoint { by, term, from, to } => LeaseChange::Checkpoint {
            owner: step(by),
            term: term.into(),
            replaces: Checkpoint::at(at(from)),
            to: Checkpoint::at(at(to)),
            pending: None,
            bytes_per_second: None,
        },
        Change::End { by, term, from } => LeaseChange::End {
            owner: step(by),
            term: term.into(),
            replaces: Checkpoint::at(at(from)),
        },
    }
}

fn real_pulse(pulse: WorkerWrite) -> WorkerChange {
    match pulse {
        WorkerWrite::Join => WorkerChange::Join {
            host: String::new(),
            started_ms: 0,
            reads: None,
            lease_time_ms: None,
        },
        WorkerWrite::Beat(counter) => WorkerChange::Beat { counter: counter.into() },
        WorkerWrite::Fence(counter) => WorkerChange::Fence { counter: counter.into() },
        WorkerWrite::Leave(counter) => WorkerChange::Leave { counter: counter.into() },
        WorkerWrite::Delete => WorkerChange::Delete,
    }
}

/// Returns the nonce of a worker write. The state of a worker's row determines its last write, so
/// the nonce need not be stored.
fn beat_nonce(pulse: WorkerWrite) -> Nonce {
    Nonce(match pulse {
        WorkerWrite::Join => 1,
        WorkerWrite::Beat(counter) => 100 + u64::from(counter),
        WorkerWrite::Fence(_) | WorkerWrite::Leave(_) => 2,
        WorkerWrite::Delete => 3,
    })
}

fn unpack_heart(heart: WorkerRowState, id: Id) -> Option<WorkerRow> {
    let (counter, state, nonce) = match heart {
        WorkerRowState::Absent => return None,
        WorkerRowState::Alive(0) => (0, WorkerState::Alive, beat_nonce(WorkerWrite::Join)),
        WorkerRowState::Alive(n) => (n, WorkerState::Alive, beat_nonce(WorkerWrite::Beat(n - 1))),
        WorkerRowState::Fenced(n) => (n, WorkerState::Fenced, beat_nonce(WorkerWrite::Fence(n))),
    };
    let counter = counter.into();
    let host = String::new();
    Some(WorkerRow {
        id: worker(id),
        counter,
        state,
        host,
        started_ms: 0,
        reads: None,
        lease_time_ms: None,
        nonce,
    })
}

fn key() -> LeaseKey {
    LeaseKey::new("stream", "shard")
}

fn worker(id: Id) -> WorkerId {
    WorkerId::of_join(if id < 2 { "a" } else { "b" }, id.into())
}

fn id_of(worker: &WorkerId) -> Id {
    worker.as_str().as_bytes().last().expect("an id ends in a digit") - b'0'
}

fn at(checkpoint: u8) -> Position {
    match checkpoint {
        0 => Position::TrimHorizon,
        END => Position::ShardEnd,
        n => Position::At {
            sequence: SequenceNumber::from_limbs(0, 0, n.into()).expect("it is small"),
            sub: 0,
        },
    }
}

fn small(number: u64) -> u8 {
    u8::try_from(number).expect("the scope bounds it")
}
