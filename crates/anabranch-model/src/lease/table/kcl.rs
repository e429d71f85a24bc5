//! The rules of KCL 2.x's table.
//!
//! The counter of a lease is its heart and its fence: every write of an owner moves it, and a
//! condition on it is a condition on everything that happened before.
//!
//! | write | needs | does |
//! |---|---|---|
//! | create | no row | row without an owner, counter 0 |
//! | renew | the counter | counter + 1 |
//! | take | the counter, whoever owns it | owner, counter + 1, switches + 1 if another owned it |
//! | release (evict) | the counter and the owner | no owner, counter + 1 |
//! | checkpoint, end | the counter | checkpoint, pending, switches = 0, counter + 1 |
//! | note children, note range | a row | the note |
//! | delete | nothing | no row |
//!
//! Java's evict looks at the owner only. An evict that arrives late would then end a later time of
//! the same owner and set the counter back, so ours asks for the counter too. Java workers see no
//! difference. There are no worker rows, no facts and no hand-over; a 2.x worker would not
//! survive rows that are not leases.

use crate::lease::checkpoint::{Checkpoint, PendingCheckpoint};
use crate::lease::outcome::Refusal;
use crate::lease::row::{Lease, LeaseKey};
use crate::lease::worker::WorkerId;
use crate::lease::write::LeaseChange;
use crate::position::Position;

/// The lease after `change`, or which part of the condition is false.
pub fn lease_after(
    key: &LeaseKey,
    change: &LeaseChange,
    row: Option<&Lease>,
) -> Result<Option<Lease>, Refusal> {
    match change {
        LeaseChange::Create(_) if row.is_some() => return Err(Refusal::Exists),
        LeaseChange::Create(new) => {
            return Ok(Some(new.as_ref().clone().into_lease(&key.stream)));
        }
        LeaseChange::Delete { .. } => return Ok(None),
        _ => {}
    }
    let mut lease = row.ok_or(Refusal::Missing)?.clone();
    match change {
        LeaseChange::Renew { term, .. } => step(&mut lease, *term)?,
        LeaseChange::Take { taker, term } => {
            step(&mut lease, *term)?;
            take(&mut lease, taker);
        }
        LeaseChange::Release { owner, term } => {
            step(&mut lease, *term)?;
            if lease.owner.take().as_ref() != Some(owner) {
                return Err(Refusal::NotOwner);
            }
        }
        LeaseChange::Checkpoint { term, replaces, to, pending, .. } => {
            if !replaces.may_become(to) {
                return Err(Refusal::GoesBack);
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
        LeaseChange::Name { .. }
        | LeaseChange::Withdraw { .. }
        | LeaseChange::Refuse { .. }
        | LeaseChange::Unrefuse { .. }
        | LeaseChange::Pass { .. } => return Err(Refusal::Unsupported),
        LeaseChange::Create(_) | LeaseChange::Delete { .. } => {}
    }
    Ok(Some(lease))
}

/// Moves the counter, if it is what the writer knew.
fn step(lease: &mut Lease, counter: u64) -> Result<(), Refusal> {
    if lease.term != counter {
        return Err(Refusal::TermMoved);
    }
    lease.term += 1;
    Ok(())
}

fn take(lease: &mut Lease, taker: &WorkerId) {
    if lease.owner.as_ref().is_some_and(|owner| owner != taker) {
        lease.owner_switches += 1;
    }
    lease.owner = Some(taker.clone());
}

/// The row has one position: lanes resume at the lowest.
fn note(lease: &mut Lease, position: Position, pending: Option<PendingCheckpoint>) {
    lease.checkpoint = Checkpoint::at(position);
    lease.pending = pending;
    lease.owner_switches = 0;
}
