//! Rules of KCL 2.x's lease table.
//!
//! The counter of a lease is both its heartbeat and its fencing token. Every write of an owner
//! increments it, so a condition on it covers everything that happened before.
//!
//! | write | condition | effect |
//! |---|---|---|
//! | create | no row | row without an owner, counter 0 |
//! | renew | counter | counter + 1 |
//! | take | counter, any owner | owner, counter + 1, switches + 1 if new, hand-over cleared |
//! | release (evict) | counter and owner | no owner, counter + 1, hand-over cleared |
//! | request hand-over | counter as listed, hand-over possible (see below) | taker set |
//! | withdraw request | counter as listed, request of that taker | no request |
//! | refuse, allow hand-over | counter and owner | hand-over refused or open, counter + 1 |
//! | hand over | counter, owner, request of taker | owner = taker, counter + 2, switches + 1 |
//! | checkpoint, end | counter | checkpoint, pending, switches = 0, counter + 1 |
//! | note children, note range | a row | children or range set |
//! | delete | none | no row |
//!
//! Java's evict checks the owner only. A late evict would then end a later ownership of the same
//! owner and set the counter back, so this layout also checks the counter. Java workers see no
//! difference. There are no worker rows and no stream facts, because a 2.x worker fails on rows
//! that are not leases.
//!
//! A hand-over is possible if another worker that supports it owns the lease, no other worker has
//! requested it, and the owner has not refused it.
//!
//! Hand-over exists only between Anabranch workers, whose ids say so
//! ([`WorkerId::supports_hand_over`]). Java's writes leave it on the row, so it counts only while
//! the owner is such a worker, and every take by an Anabranch worker clears it. A request does not
//! change the counter, because that would look like a renewal.

use crate::lease::checkpoint::{Checkpoint, PendingCheckpoint};
use crate::lease::outcome::WriteRefusal;
use crate::lease::row::{HandOver, Lease, LeaseKey};
use crate::lease::worker_row::WorkerId;
use crate::lease::write::LeaseChange;
use crate::position::Position;

/// Counter increment of a hand-over. If it were 1, a taker whose own take had no reply would
/// mistake the hand-over for that take. It would then count its lease time from a moment at which
/// the counter was not renewed.
pub const PASS_STEP: u64 = 2;

/// Returns the lease after `change`, or the part of the condition that is false.
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

/// Increments the counter, if it has the expected value.
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

/// Sets the checkpoint. The row has one position: all lanes resume at the lowest.
fn note(lease: &mut Lease, position: Position, pending: Option<PendingCheckpoint>) {
    lease.checkpoint = Checkpoint::at(position);
    lease.pending = pending;
    lease.owner_switches = 0;
}
