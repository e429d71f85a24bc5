//! The rules of KCL 2.x's table.
//!
//! The counter of a lease is its heart and its fence: every write of an owner moves it, and a
//! condition on it is a condition on everything that happened before.
//!
//! | write | needs | does |
//! |---|---|---|
//! | create | no row | row without an owner, counter 0 |
//! | renew | the counter | counter + 1 |
//! | take | the counter, whoever owns it | owner, counter + 1, switches + 1 if another owned it, hand-over forgotten |
//! | release (evict) | the counter and the owner | no owner, counter + 1, hand-over forgotten |
//! | name | the counter as listed, another owner that hands over, nobody else named, not refused | taker named |
//! | withdraw | the counter as listed, that taker named | nobody named |
//! | refuse, unrefuse | the counter and the owner | hand-over refused, or open again, counter + 1 |
//! | pass | the counter and the owner, that taker named | owner = taker, counter + 2, switches + 1 |
//! | checkpoint, end | the counter | checkpoint, pending, switches = 0, counter + 1 |
//! | note children, note range | a row | the note |
//! | delete | nothing | no row |
//!
//! Java's evict looks at the owner only. An evict that arrives late would then end a later time of
//! the same owner and set the counter back, so ours asks for the counter too. Java workers see no
//! difference. There are no worker rows and no facts; a 2.x worker would not survive rows that are
//! not leases.
//!
//! Hand-over is ours alone, between workers whose ids say so ([`WorkerId::supports_hand_over`]). Java's
//! writes leave it on the row, so it counts only while the owner is such a worker, and every take
//! by a worker of ours forgets it. A name moves no counter: it would look like a renewal.

use crate::lease::checkpoint::{Checkpoint, PendingCheckpoint};
use crate::lease::outcome::WriteRefusal;
use crate::lease::row::{HandOver, Lease, LeaseKey};
use crate::lease::worker_row::WorkerId;
use crate::lease::write::LeaseChange;
use crate::position::Position;

/// How far a pass moves the counter. A taker whose own take had no answer would mistake a pass of one
/// step for it, and count its time from a moment at which the counter stood still.
pub const PASS_STEP: u64 = 2;

/// The lease after `change`, or which part of the condition is false.
pub fn lease_after(
    key: &LeaseKey,
    change: &LeaseChange,
    row: Option<&Lease>,
) -> Result<Option<Lease>, WriteRefusal> {
    match change {
        LeaseChange::Create(_) if row.is_some() => return Err(WriteRefusal::Exists),
        LeaseChange::Create(new) => {
            return Ok(Some(new.as_ref().clone().into_lease(&key.stream)));
        }
        LeaseChange::Delete { .. } => return Ok(None),
        _ => {}
    }
    let mut lease = row.ok_or(WriteRefusal::Missing)?.clone();
    match change {
        LeaseChange::Renew { term, .. } => step(&mut lease, *term)?,
        LeaseChange::Take { taker, term } => {
            step(&mut lease, *term)?;
            take(&mut lease, taker);
        }
        LeaseChange::Release { owner, term } => {
            step(&mut lease, *term)?;
            if lease.owner.take().as_ref() != Some(owner) {
                return Err(WriteRefusal::NotOwner);
            }
            lease.hand_over = HandOver::None;
        }
        LeaseChange::RequestHandOver { taker, term } => {
            at_counter(&lease, *term)?;
            may_ask(&lease, taker)?;
            lease.hand_over = HandOver::Requested { taker: taker.clone() };
        }
        LeaseChange::WithdrawRequest { taker, term } => {
            at_counter(&lease, *term)?;
            named(&lease, taker)?;
            lease.hand_over = HandOver::None;
        }
        LeaseChange::RefuseHandOver { owner, term } => {
            step_owned(&mut lease, owner, *term)?;
            if owner.supports_hand_over() {
                lease.hand_over = HandOver::Refused;
            }
        }
        LeaseChange::AllowHandOver { owner, term } => {
            step_owned(&mut lease, owner, *term)?;
            if lease.hand_over == HandOver::Refused {
                lease.hand_over = HandOver::None;
            }
        }
        LeaseChange::HandOver { owner, term, to } => {
            step_owned(&mut lease, owner, *term)?;
            named(&lease, to)?;
            lease.term += PASS_STEP - 1;
            take(&mut lease, to);
        }
        LeaseChange::Checkpoint { term, replaces, to, pending, .. } => {
            if !replaces.may_become(to) {
                return Err(WriteRefusal::CheckpointBehind);
            }
            step(&mut lease, *term)?;
            note(&mut lease, to.lowest(), pending.clone());
        }
        LeaseChange::End { term, .. } => {
            step(&mut lease, *term)?;
            note(&mut lease, Position::ShardEnd, None);
        }
        LeaseChange::NoteChildren(children) => lease.children.clone_from(children),
        LeaseChange::NoteRange(range) => lease.range = Some(*range),
        LeaseChange::Create(_) | LeaseChange::Delete { .. } => {}
    }
    Ok(Some(lease))
}

/// Moves the counter, if it is what the writer knew.
fn step(lease: &mut Lease, counter: u64) -> Result<(), WriteRefusal> {
    at_counter(lease, counter)?;
    lease.term += 1;
    Ok(())
}

fn at_counter(lease: &Lease, counter: u64) -> Result<(), WriteRefusal> {
    if lease.term == counter { Ok(()) } else { Err(WriteRefusal::TermMoved) }
}

fn step_owned(lease: &mut Lease, owner: &WorkerId, counter: u64) -> Result<(), WriteRefusal> {
    step(lease, counter)?;
    if lease.owner.as_ref() == Some(owner) { Ok(()) } else { Err(WriteRefusal::NotOwner) }
}

fn may_ask(lease: &Lease, taker: &WorkerId) -> Result<(), WriteRefusal> {
    match (&lease.owner, &lease.hand_over) {
        (Some(owner), _) if owner == taker || !owner.supports_hand_over() => {
            Err(WriteRefusal::NoOwner)
        }
        (None, _) => Err(WriteRefusal::NoOwner),
        (_, HandOver::Refused) => Err(WriteRefusal::HandOverRefused),
        (_, HandOver::Requested { taker: asked }) if asked != taker => {
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

fn take(lease: &mut Lease, taker: &WorkerId) {
    if lease.owner.as_ref().is_some_and(|owner| owner != taker) {
        lease.owner_switches += 1;
    }
    lease.owner = Some(taker.clone());
    lease.hand_over = HandOver::None;
}

/// The row has one position: lanes resume at the lowest.
fn note(lease: &mut Lease, position: Position, pending: Option<PendingCheckpoint>) {
    lease.checkpoint = Checkpoint::at(position);
    lease.pending = pending;
    lease.owner_switches = 0;
}
