//! Rules of the native layout.
//!
//! | write | condition | effect |
//! |---|---|---|
//! | create | no row | row without an owner, term 0 |
//! | take | term as listed | owner, term + 1, hand-over cleared |
//! | release | owner and term | no owner, term + 1, hand-over cleared |
//! | request hand-over | term as listed, another owner, no other request, not refused | taker set |
//! | withdraw request | term as listed, request of that taker | no request |
//! | refuse or allow hand-over | owner and term | hand-over refused, or open again |
//! | hand over | owner and term, request of that taker | owner = taker, term + 1 |
//! | checkpoint | owner and term, the replaced checkpoint | checkpoint, pending, rate |
//! | end | owner and term, the replaced checkpoint | checkpoint at the end, no pending |
//! | note children, note range | a row | children or range set |
//! | delete | term as listed, the shard's end | no row |
//! | join | no row | alive, counter 0, the worker's lease time |
//! | heartbeat | not fenced, counter as known | counter + 1 |
//! | set streams | not fenced, counter as known | streams, counter + 1 |
//! | announce leaving | not fenced, counter as known | leaving, counter + 1 |
//! | fence, leave | not fenced, counter as watched or known | fenced |
//! | delete worker | fenced, and it owns no lease | no row |
//!
//! Every lease and worker write stores its nonce in the row.

use crate::ids::StreamName;
use crate::lease::application::StreamFacts;
use crate::lease::checkpoint::Checkpoint;
use crate::lease::outcome::WriteRefusal;
use crate::lease::row::{HandOver, Lease, LeaseKey, NewLease};
use crate::lease::worker_row::{WorkerId, WorkerRow, WorkerState};
use crate::lease::write::{LeaseChange, Nonce, StreamChange, WorkerChange};
use crate::position::Position;

/// Returns the lease after `change`, or the part of the condition that is false.
pub fn lease_after(
    key: &LeaseKey,
    change: &LeaseChange,
    nonce: Nonce,
    row: Option<&Lease>,
) -> Result<Option<Lease>, WriteRefusal> {
    if let LeaseChange::Create(new) = change {
        return if row.is_some() {
            Err(WriteRefusal::Exists)
        } else {
            Ok(Some(first(new, key, nonce)))
        };
    }
    let mut lease = row.ok_or(WriteRefusal::Missing)?.clone();
    lease.nonce = nonce;
    match change {
        LeaseChange::Create(_) | LeaseChange::Renew { .. } => {
            return Err(WriteRefusal::Unsupported);
        }
        LeaseChange::Take { taker, term } => {
            at_term(&lease, *term)?;
            change_hands(&mut lease, Some(taker));
        }
        LeaseChange::Release { owner, term } => {
            held(&lease, owner, *term)?;
            change_hands(&mut lease, None);
        }
        LeaseChange::RequestHandOver { taker, term } => {
            at_term(&lease, *term)?;
            may_ask(&lease, taker)?;
            lease.hand_over = HandOver::Requested { taker: taker.clone() };
        }
        LeaseChange::WithdrawRequest { taker, term } => {
            at_term(&lease, *term)?;
            named(&lease, taker)?;
            lease.hand_over = HandOver::None;
        }
        LeaseChange::RefuseHandOver { owner, term } => {
            held(&lease, owner, *term)?;
            lease.hand_over = HandOver::Refused;
        }
        LeaseChange::AllowHandOver { owner, term } => {
            held(&lease, owner, *term)?;
            if lease.hand_over == HandOver::Refused {
                lease.hand_over = HandOver::None;
            }
        }
        LeaseChange::HandOver { owner, term, to } => {
            held(&lease, owner, *term)?;
            named(&lease, to)?;
            change_hands(&mut lease, Some(to));
        }
        LeaseChange::Checkpoint { owner, term, replaces, to, pending, bytes_per_second } => {
            forward(replaces, to)?;
            held(&lease, owner, *term)?;
            replaced(&lease, replaces)?;
            lease.checkpoint = to.clone();
            lease.pending.clone_from(pending);
            lease.bytes_per_second = bytes_per_second.or(lease.bytes_per_second);
        }
        LeaseChange::End { owner, term, replaces } => {
            held(&lease, owner, *term)?;
            replaced(&lease, replaces)?;
            lease.checkpoint = Checkpoint::at(Position::ShardEnd);
            lease.pending = None;
        }
        LeaseChange::NoteChildren(children) => lease.children.clone_from(children),
        LeaseChange::NoteRange(range) => lease.range = Some(*range),
        LeaseChange::Delete { term } => {
            at_term(&lease, *term)?;
            return if lease.is_ended() { Ok(None) } else { Err(WriteRefusal::NotEnded) };
        }
    }
    Ok(Some(lease))
}

/// Returns the worker after `change`, or the part of the condition that is false.
///
/// The caller, which has the leases, must check that a worker whose row is deleted owns no lease.
pub fn worker_after(
    id: &WorkerId,
    change: &WorkerChange,
    nonce: Nonce,
    row: Option<&WorkerRow>,
) -> Result<Option<WorkerRow>, WriteRefusal> {
    if let WorkerChange::Join { host, started_ms, reads, lease_time_ms } = change {
        let state = WorkerState::Alive;
        let (id, host, reads) = (id.clone(), host.clone(), reads.clone());
        let (started_ms, lease_time_ms) = (*started_ms, *lease_time_ms);
        let joined =
            WorkerRow { id, counter: 0, state, host, started_ms, reads, lease_time_ms, nonce };
        return if row.is_some() { Err(WriteRefusal::Exists) } else { Ok(Some(joined)) };
    }
    let mut worker = row.ok_or(WriteRefusal::Missing)?.clone();
    worker.nonce = nonce;
    match change {
        WorkerChange::Join { .. } => return Err(WriteRefusal::Exists),
        WorkerChange::Beat { counter } => {
            alive_at(&worker, *counter)?;
            worker.counter += 1;
        }
        WorkerChange::SetStreams { counter, streams } => {
            alive_at(&worker, *counter)?;
            worker.counter += 1;
            worker.reads = Some(streams.clone());
        }
        WorkerChange::AnnounceLeaving { counter } => {
            alive_at(&worker, *counter)?;
            worker.counter += 1;
            worker.state = WorkerState::Leaving;
        }
        WorkerChange::Fence { counter } | WorkerChange::Leave { counter } => {
            alive_at(&worker, *counter)?;
            worker.state = WorkerState::Fenced;
        }
        WorkerChange::Delete if worker.is_alive() => return Err(WriteRefusal::StillAlive),
        WorkerChange::Delete => return Ok(None),
    }
    Ok(Some(worker))
}

/// Returns the facts about a stream after `change`, or the part of the condition that is false.
pub fn stream_after(
    change: StreamChange,
    facts: Option<&StreamFacts>,
) -> Result<StreamFacts, WriteRefusal> {
    match (change, facts) {
        (StreamChange::NoteStart { t0_ms, created_ms }, None) => {
            Ok(StreamFacts { t0_ms, created_ms, first_sync_done: false })
        }
        (StreamChange::NoteStart { .. }, Some(_)) => Err(WriteRefusal::Exists),
        (StreamChange::MarkSynced { .. }, None) => Err(WriteRefusal::Missing),
        (StreamChange::MarkSynced { created_ms }, Some(facts)) => {
            if facts.created_ms == created_ms {
                Ok(StreamFacts { first_sync_done: true, ..*facts })
            } else {
                Err(WriteRefusal::OtherStream)
            }
        }
    }
}

fn first(new: &NewLease, key: &LeaseKey, nonce: Nonce) -> Lease {
    let stream: &StreamName = &key.stream;
    Lease { nonce, ..new.clone().into_lease(stream) }
}

fn at_term(lease: &Lease, term: u64) -> Result<(), WriteRefusal> {
    if lease.term == term { Ok(()) } else { Err(WriteRefusal::TermMoved) }
}

fn held(lease: &Lease, owner: &WorkerId, term: u64) -> Result<(), WriteRefusal> {
    at_term(lease, term)?;
    if lease.owner.as_ref() == Some(owner) { Ok(()) } else { Err(WriteRefusal::NotOwner) }
}

fn may_ask(lease: &Lease, taker: &WorkerId) -> Result<(), WriteRefusal> {
    match (&lease.owner, &lease.hand_over) {
        (None, _) => Err(WriteRefusal::NoOwner),
        (Some(owner), _) if owner == taker => Err(WriteRefusal::NoOwner),
        (_, HandOver::Refused) => Err(WriteRefusal::HandOverRefused),
        (_, HandOver::Requested { .. }) if named(lease, taker).is_err() => {
            Err(WriteRefusal::RequestedByOther)
        }
        (_, HandOver::Requested { .. } | HandOver::None) => Ok(()),
    }
}

fn named(lease: &Lease, taker: &WorkerId) -> Result<(), WriteRefusal> {
    match &lease.hand_over {
        HandOver::Requested { taker: asked } if asked == taker => Ok(()),
        _ => Err(WriteRefusal::NotRequested),
    }
}

/// Changes the owner. This is the only place where a term changes.
fn change_hands(lease: &mut Lease, owner: Option<&WorkerId>) {
    lease.owner = owner.cloned();
    lease.term += 1;
    lease.hand_over = HandOver::None;
}

fn forward(replaces: &Checkpoint, to: &Checkpoint) -> Result<(), WriteRefusal> {
    if replaces.may_become(to) { Ok(()) } else { Err(WriteRefusal::CheckpointBehind) }
}

fn replaced(lease: &Lease, replaces: &Checkpoint) -> Result<(), WriteRefusal> {
    if lease.checkpoint == *replaces { Ok(()) } else { Err(WriteRefusal::CheckpointMoved) }
}

fn alive_at(worker: &WorkerRow, counter: u64) -> Result<(), WriteRefusal> {
    if !worker.is_alive() {
        Err(WriteRefusal::Fenced)
    } else if worker.counter == counter {
        Ok(())
    } else {
        Err(WriteRefusal::CounterMoved)
    }
}
