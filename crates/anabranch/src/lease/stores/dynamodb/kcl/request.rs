//! Requests for the writes of KCL 2.x, with KCL's conditions and effects.

use super::keys::StreamOfTable;
use super::row;
use crate::lease::stores::dynamodb::expression::{Expression, WriteRequest};
use crate::lease::stores::dynamodb::item::{number, shard_set, text};
use crate::lease::stores::dynamodb::provision::LEASE_KEY;
use anabranch_model::lease::table::kcl;
use anabranch_model::lease::{Lease, LeaseChange, LeaseKey, PendingCheckpoint, WorkerId};
use anabranch_model::position::{Position, StartPosition};
use aws_sdk_dynamodb::types::AttributeValue;

/// Returns the request for a change of a lease, or `None` if no row satisfies its condition.
///
/// `seen` is the row that was returned with a refusal of the same write, if there was one. `start`
/// is the application's start.
pub(crate) fn lease(
    stream: &StreamOfTable,
    key: &LeaseKey,
    change: &LeaseChange,
    seen: Option<&Lease>,
    start: StartPosition,
) -> Option<WriteRequest> {
    let at_counter =
        |counter: &u64| Expression::default().when(row::LEASE_COUNTER, number(*counter));
    let stepped = |counter: &u64| {
        at_counter(counter).set(row::LEASE_COUNTER, number(counter.saturating_add(1)))
    };
    let noted = || Expression::default().when_present(LEASE_KEY);
    let update = match change {
        LeaseChange::Create(_) => {
            let lease = kcl::lease_after(key, change, None).ok()??;
            return Some(WriteRequest::create(
                stream.key(key),
                row::new_item(stream, &lease, start),
            ));
        }
        LeaseChange::Delete { .. } => {
            return Some(WriteRequest::delete(stream.key(key), Expression::default()));
        }
        LeaseChange::Renew { term, .. } => stepped(term),
        LeaseChange::Take { taker, term } => {
            take(stepped(term), taker, seen.and_then(|lease| lease.owner.as_ref()))
        }
        LeaseChange::Release { owner, term } => {
            let e = owned(stepped(term), owner).remove(row::LEASE_OWNER);
            without_hand_over(e)
        }
        // Only the owner's id shows whether it supports hand-overs, so the row must be read first.
        LeaseChange::RequestHandOver { taker, term } => {
            let me = text(taker.as_str());
            owned(at_counter(term), seen?.owner.as_ref()?)
                .when_absent(row::REFUSED)
                .when_absent_or(row::TAKER, me.clone())
                .set(row::TAKER, me)
        }
        LeaseChange::WithdrawRequest { taker, term } => {
            owned(at_counter(term), seen?.owner.as_ref()?)
                .when(row::TAKER, text(taker.as_str()))
                .remove(row::TAKER)
        }
        LeaseChange::RefuseHandOver { owner, term } => {
            let e = owned(stepped(term), owner).remove(row::TAKER);
            if owner.supports_hand_over() { e.set(row::REFUSED, number(1)) } else { e }
        }
        LeaseChange::AllowHandOver { owner, term } => {
            owned(stepped(term), owner).remove(row::REFUSED)
        }
        LeaseChange::HandOver { owner, term, to } => {
            let to = text(to.as_str());
            let e = owned(at_counter(term), owner).when(row::TAKER, to.clone());
            let e = e.set(row::LEASE_COUNTER, number(term.saturating_add(kcl::PASS_STEP)));
            let e = e.set(row::LEASE_OWNER, to).add(row::OWNER_SWITCHES, number(1));
            without_hand_over(e)
        }
        LeaseChange::Checkpoint { replaces, to, .. } if !replaces.may_become(to) => return None,
        LeaseChange::Checkpoint { term, to, pending, .. } => {
            let at = to.lowest();
            let e = done_up_to(stepped(term), stream, key, row::checkpoint(at, start));
            let e = announced(e, pending.as_ref());
            with_moment(e, row::moment(at, start))
        }
        LeaseChange::End { term, .. } => {
            let end = row::checkpoint(Position::ShardEnd, start);
            let e = announced(done_up_to(stepped(term), stream, key, end), None);
            with_moment(e, None)
        }
        LeaseChange::NoteChildren(children) => {
            noted().set_or_remove(row::CHILDREN, shard_set(children))
        }
        LeaseChange::NoteRange(range) => noted()
            .set(row::STARTING_HASH_KEY, text(range.start().to_string()))
            .set(row::ENDING_HASH_KEY, text(range.end().to_string())),
    };
    Some(WriteRequest::update(stream.key(key), update))
}

/// Takes the lease. KCL counts takes from another owner. An expression can't compare the owner and
/// count at once, so the condition names the previous owner: at first none or the taker, then the
/// owner on the refused row.
///
/// A take ends a hand-over that a 3.x leader has begun, as in 3.x. KCL 2.x would leave the
/// attribute behind.
fn take(e: Expression, taker: &WorkerId, from: Option<&WorkerId>) -> Expression {
    let me = text(taker.as_str());
    let e = match from {
        Some(other) if other != taker => {
            e.when(row::LEASE_OWNER, text(other.as_str())).add(row::OWNER_SWITCHES, number(1))
        }
        _ => e.when_absent_or(row::LEASE_OWNER, me.clone()),
    };
    without_hand_over(e.set(row::LEASE_OWNER, me).remove(row::CHECKPOINT_OWNER))
}

fn owned(e: Expression, owner: &WorkerId) -> Expression {
    e.when(row::LEASE_OWNER, text(owner.as_str()))
}

fn without_hand_over(e: Expression) -> Expression {
    e.remove(row::TAKER).remove(row::REFUSED)
}

fn done_up_to(
    e: Expression,
    stream: &StreamOfTable,
    key: &LeaseKey,
    (checkpoint, sub): (AttributeValue, AttributeValue),
) -> Expression {
    let e = e
        .set(row::CHECKPOINT, checkpoint)
        .set(row::CHECKPOINT_SUB, sub)
        .set(row::OWNER_SWITCHES, number(0));
    match &stream.id {
        None => e,
        Some(id) => e.set(row::STREAM_NAME, text(id)).set(row::SHARD_ID, text(key.shard.as_str())),
    }
}

fn announced(e: Expression, pending: Option<&PendingCheckpoint>) -> Expression {
    row::pending(pending).into_iter().fold(e, |e, (name, value)| e.set_or_remove(name, value))
}

/// Sets or removes the moment that LATEST stands for. Every checkpoint elsewhere removes it. Java
/// may have written a sequence number over LATEST and left the moment, which must not apply when
/// the row is set to LATEST again.
fn with_moment(e: Expression, moment: Option<AttributeValue>) -> Expression {
    e.set_or_remove(row::LATEST_MS, moment)
}
