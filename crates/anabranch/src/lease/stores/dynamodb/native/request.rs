//! Requests for the writes of the native layout: the rules of `lease/table/native.rs` as
//! conditions.
//!
//! A condition only guards the write. The reason for a refusal comes from the pure rules, applied
//! to the row that is returned with it.

use super::{keys, row};
use crate::lease::stores::dynamodb::expression::{Expression, WriteRequest};
use crate::lease::stores::dynamodb::item::{number, shard_list, text};
use anabranch_model::hash::HashRange;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::table::native;
use anabranch_model::lease::{
    Checkpoint, LeaseChange, LeaseKey, Nonce, PendingCheckpoint, StreamChange, WorkerChange,
    WorkerId, WorkerState,
};
use anabranch_model::position::Position;
use aws_sdk_dynamodb::types::AttributeValue;

/// Returns the request for a change of a lease, or `None` if no row satisfies its condition.
pub(crate) fn lease(key: &LeaseKey, change: &LeaseChange, nonce: Nonce) -> Option<WriteRequest> {
    let stamped = || Expression::default().set(row::NONCE, number(nonce.0));
    let at_term = |term: &u64| stamped().when(row::TERM, number(*term));
    let held = |owner: &WorkerId, term| at_term(term).when(row::OWNER, text(owner.as_str()));
    let update = match change {
        LeaseChange::Create(_) => {
            let lease = native::lease_after(key, change, nonce, None).ok()??;
            return Some(WriteRequest::create(keys::lease(key), row::new_lease_item(&lease)));
        }
        LeaseChange::Delete { term } => {
            let ended = text(Position::ShardEnd.to_string());
            let expression = Expression::default().when(row::TERM, number(*term));
            return Some(WriteRequest::delete(
                keys::lease(key),
                expression.when(row::CHECKPOINT, ended),
            ));
        }
        LeaseChange::Renew { .. } => return None,
        LeaseChange::Take { taker, term } => owned_by(at_term(term), taker, *term),
        LeaseChange::Release { owner, term } => {
            next_term(held(owner, term), *term).remove(row::OWNER)
        }
        LeaseChange::RequestHandOver { taker, term } => at_term(term)
            .when_other(row::OWNER, text(taker.as_str()))
            .when_absent(row::REFUSED)
            .when_absent_or(row::ASKED_BY, text(taker.as_str()))
            .set(row::ASKED_BY, text(taker.as_str())),
        LeaseChange::WithdrawRequest { taker, term } => {
            let asked = at_term(term).when(row::ASKED_BY, text(taker.as_str()));
            asked.remove(row::ASKED_BY)
        }
        LeaseChange::RefuseHandOver { owner, term } => {
            let refused = held(owner, term).set(row::REFUSED, AttributeValue::Bool(true));
            refused.remove(row::ASKED_BY)
        }
        LeaseChange::AllowHandOver { owner, term } => held(owner, term).remove(row::REFUSED),
        LeaseChange::HandOver { owner, term, to } => {
            let asked = held(owner, term).when(row::ASKED_BY, text(to.as_str()));
            owned_by(asked, to, *term)
        }
        LeaseChange::Checkpoint { replaces, to, .. } if !replaces.may_become(to) => return None,
        LeaseChange::Checkpoint { owner, term, replaces, to, pending, bytes_per_second } => {
            let done = done_up_to(held(owner, term), replaces, to, pending.as_ref());
            let rate = bytes_per_second.map(number);
            rate.into_iter().fold(done, |e, rate| e.set(row::BYTES_PER_SECOND, rate))
        }
        LeaseChange::End { owner, term, replaces } => {
            done_up_to(held(owner, term), replaces, &Position::ShardEnd.into(), None)
        }
        LeaseChange::NoteChildren(children) => note_children(stamped(), children),
        LeaseChange::NoteRange(range) => note_range(stamped(), *range),
    };
    Some(WriteRequest::update(keys::lease(key), update))
}

/// Moves the term and ends any hand-over. No other function moves a term.
fn next_term(e: Expression, term: u64) -> Expression {
    let e = e.set(row::TERM, number(term.saturating_add(1)));
    e.remove(row::ASKED_BY).remove(row::REFUSED)
}

fn owned_by(e: Expression, owner: &WorkerId, term: u64) -> Expression {
    next_term(e, term).set(row::OWNER, text(owner.as_str()))
}

fn done_up_to(
    e: Expression,
    replaces: &Checkpoint,
    to: &Checkpoint,
    pending: Option<&PendingCheckpoint>,
) -> Expression {
    let (old_lowest, old_lanes) = row::checkpoint(replaces);
    let (lowest, lanes) = row::checkpoint(to);
    let (at, state) = row::pending(pending);
    e.when(row::CHECKPOINT, old_lowest)
        .when_same(row::LANES, old_lanes)
        .set(row::CHECKPOINT, lowest)
        .set_or_remove(row::LANES, lanes)
        .set_or_remove(row::PENDING, at)
        .set_or_remove(row::PENDING_STATE, state)
}

fn note_children(e: Expression, children: &[ShardId]) -> Expression {
    let children = (!children.is_empty()).then(|| shard_list(children));
    e.when_present(keys::PARTITION).set_or_remove(row::CHILDREN, children)
}

fn note_range(e: Expression, range: HashRange) -> Expression {
    e.when_present(keys::PARTITION)
        .set(row::RANGE_START, text(range.start().to_string()))
        .set(row::RANGE_END, text(range.end().to_string()))
}

/// Returns the request for a change of a worker. Before a worker's row is deleted, the caller
/// checks that no lease names it.
pub(crate) fn worker(id: &WorkerId, change: &WorkerChange, nonce: Nonce) -> Option<WriteRequest> {
    let beating = |counter: &u64| {
        Expression::default()
            .when(row::COUNTER, number(*counter))
            .when_other(row::STATE, row::state(WorkerState::Fenced))
            .set(row::NONCE, number(nonce.0))
    };
    let moved =
        |counter: &u64| beating(counter).set(row::COUNTER, number(counter.saturating_add(1)));
    let update = match change {
        WorkerChange::Join { .. } => {
            let worker = native::worker_after(id, change, nonce, None).ok()??;
            return Some(WriteRequest::create(keys::worker(id), row::new_worker_item(&worker)));
        }
        WorkerChange::Delete => {
            let fenced = row::state(WorkerState::Fenced);
            let expression = Expression::default().when(row::STATE, fenced);
            return Some(WriteRequest::delete(keys::worker(id), expression));
        }
        WorkerChange::Beat { counter } => moved(counter),
        WorkerChange::SetStreams { counter, streams } => {
            moved(counter).set(row::READS, row::reads(streams))
        }
        WorkerChange::AnnounceLeaving { counter } => {
            moved(counter).set(row::STATE, row::state(WorkerState::Leaving))
        }
        WorkerChange::Fence { counter } | WorkerChange::Leave { counter } => {
            beating(counter).set(row::STATE, row::state(WorkerState::Fenced))
        }
    };
    Some(WriteRequest::update(keys::worker(id), update))
}

/// Returns the request for a change of a stream's facts.
pub(crate) fn stream(name: &StreamName, change: StreamChange) -> Option<WriteRequest> {
    let key = keys::stream(name);
    Some(match change {
        StreamChange::NoteStart { .. } => {
            let facts = native::stream_after(change, None).ok()?;
            WriteRequest::create(key.clone(), row::new_stream_item(key, facts))
        }
        StreamChange::MarkSynced { created_ms } => {
            let same = Expression::default().when(row::CREATED_MS, number(created_ms));
            WriteRequest::update(key, same.set(row::SYNCED, AttributeValue::Bool(true)))
        }
    })
}
