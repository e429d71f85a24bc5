//! Resolution of a write whose reply was lost, by a read of its row.
//!
//! The counter alone proves nothing, because another write of this worker, or another worker, may
//! have changed it. A write is applied if the row holds its values. Otherwise it is either void for
//! good or may still be in flight, and a write in flight can land after any number of reads.
//! Callers therefore follow three rules:
//!
//! - A retry sends the same write again, including its nonce. A refused retry is resolved by the
//!   row that came with the refusal, because the first attempt may have landed. A heartbeat
//!   resolved this way counts from its *first* sending.
//! - In KCL's layout a renewal changes only a counter, which an older write of the same worker may
//!   have changed instead. There the deadline counts from the oldest unresolved write.
//! - An owner that sent a release or a hand-over delivers nothing more under that term. To
//!   continue, it takes its own lease again, which makes the late write void.

use super::checkpoint::Checkpoint;
use super::outcome::{StoredRow, WriteRefusal};
use super::row::{HandOver, Lease};
use super::table::{Layout, kcl, native};
use super::worker_row::WorkerId;
use super::write::{LeaseChange, StreamChange, WorkerChange, Write};
use crate::ids::ShardId;
use crate::position::Position;

/// Result of resolving a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Resolution {
    /// The row holds the values of the write.
    Applied,
    /// The row does not hold them and never will: the write's condition is false for good. It may
    /// have been applied and overwritten since; the row as read is authoritative.
    NotApplied,
    /// The write may still land. Read again, or retry.
    StillUnknown,
}

/// Resolves `write` by a consistent read of its row, made after its reply was given up.
pub fn resolve(layout: Layout, write: &Write, read: &StoredRow) -> Resolution {
    if holds(layout, write, read) {
        Resolution::Applied
    } else if may_land(layout, write, read) {
        Resolution::StillUnknown
    } else {
        Resolution::NotApplied
    }
}

/// Returns true if the row holds the values of the write.
fn holds(layout: Layout, write: &Write, read: &StoredRow) -> bool {
    match (write, read) {
        (
            Write::Lease { change: LeaseChange::Delete { .. }, .. }
            | Write::Worker { change: WorkerChange::Delete, .. },
            StoredRow::Absent,
        ) => true,
        (Write::Lease { change, nonce, .. }, StoredRow::Lease(lease)) => match layout {
            Layout::Native => lease.nonce == *nonce || holds_checkpoint(change, lease),
            Layout::Kcl => holds_kcl(change, lease),
        },
        (Write::Worker { nonce, .. }, StoredRow::Worker(worker)) => worker.nonce == *nonce,
        (Write::Stream { change, .. }, StoredRow::Stream(facts)) => match change {
            StreamChange::NoteStart { t0_ms, created_ms } => {
                (facts.t0_ms, facts.created_ms) == (*t0_ms, *created_ms)
            }
            StreamChange::MarkSynced { created_ms } => {
                facts.first_sync_done && facts.created_ms == *created_ms
            }
        },
        _ => false,
    }
}

/// Returns true if the row holds the values of a checkpoint write. Another worker's hand-over
/// request, which has its own nonce, may have followed it. Only the owner writes checkpoints under
/// its term, so the content is proof.
fn holds_checkpoint(change: &LeaseChange, lease: &Lease) -> bool {
    let (owner, term, checkpoint, pending) = match change {
        LeaseChange::Checkpoint { owner, term, to, pending, .. } => (owner, term, to, pending),
        LeaseChange::End { owner, term, .. } => {
            (owner, term, &Checkpoint::at(Position::ShardEnd), &None)
        }
        _ => return false,
    };
    lease.owner.as_ref() == Some(owner)
        && lease.term == *term
        && lease.checkpoint == *checkpoint
        && lease.pending == *pending
}

/// Returns true if owner, counter and content are all as the write would have made them. KCL's rows
/// have no nonce.
fn holds_kcl(change: &LeaseChange, lease: &Lease) -> bool {
    let step = if matches!(change, LeaseChange::HandOver { .. }) { kcl::PASS_STEP } else { 1 };
    let (owner, counter) = match change {
        LeaseChange::Renew { owner, term }
        | LeaseChange::Take { taker: owner, term }
        | LeaseChange::RefuseHandOver { owner, term }
        | LeaseChange::AllowHandOver { owner, term }
        | LeaseChange::Checkpoint { owner, term, .. }
        | LeaseChange::End { owner, term, .. } => (Some(owner), term),
        LeaseChange::Release { term, .. } => (None, term),
        LeaseChange::HandOver { to, term, .. } => (Some(to), term),
        LeaseChange::RequestHandOver { taker, .. } => return is_named(lease, taker),
        LeaseChange::WithdrawRequest { taker, .. } => return !is_named(lease, taker),
        LeaseChange::NoteChildren(children) => return same_set(&lease.children, children),
        LeaseChange::NoteRange(range) => return lease.range == Some(*range),
        _ => return false,
    };
    let content = match change {
        LeaseChange::Checkpoint { to, pending, .. } => {
            lease.checkpoint == to.lowest() && lease.pending == *pending
        }
        LeaseChange::End { .. } => lease.is_ended() && lease.pending.is_none(),
        LeaseChange::RefuseHandOver { .. } => lease.hand_over == HandOver::Refused,
        LeaseChange::AllowHandOver { .. } => lease.hand_over != HandOver::Refused,
        _ => true,
    };
    lease.owner.as_ref() == owner && lease.term == counter + step && content
}

fn is_named(lease: &Lease, taker: &WorkerId) -> bool {
    matches!(&lease.hand_over, HandOver::Requested { taker: asked } if asked == taker)
}

/// Compares shard ids as sets: KCL stores them as a set, without order.
fn same_set(a: &[ShardId], b: &[ShardId]) -> bool {
    a.iter().all(|shard| b.contains(shard)) && b.iter().all(|shard| a.contains(shard))
}

/// Returns true if a write that is not in the row can still be applied, now or after other writes.
/// Terms, counters and checkpoints never go back, so a condition on a past value is false for good.
fn may_land(layout: Layout, write: &Write, read: &StoredRow) -> bool {
    let refusal = match (write, read) {
        (Write::Lease { key, change, nonce }, _) => {
            let row = if let StoredRow::Lease(lease) = read { Some(&**lease) } else { None };
            layout.lease_after(key, change, *nonce, row).err()
        }
        (Write::Worker { id, change, nonce }, _) => {
            let row = if let StoredRow::Worker(worker) = read { Some(worker) } else { None };
            native::worker_after(id, change, *nonce, row).err()
        }
        (Write::Stream { change, .. }, _) => {
            let facts = if let StoredRow::Stream(facts) = read { Some(facts) } else { None };
            native::stream_after(*change, facts).err()
        }
    };
    // Other workers, or older writes of this one, can still satisfy these conditions.
    refusal.is_none_or(|why| {
        matches!(
            why,
            WriteRefusal::HandOverRefused
                | WriteRefusal::RequestedByOther
                | WriteRefusal::NotRequested
                | WriteRefusal::NotEnded
                | WriteRefusal::StillAlive
                | WriteRefusal::StillReferenced
        )
    })
}

#[cfg(test)]
mod tests;
