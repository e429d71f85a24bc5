//! Execution of the planner's moves by conditional writes.
//!
//! Each move is one attempt. A move that fails, or whose reply is lost, is left to the next poll:
//! the rows show its result, and the planner decides what to do then.

use super::shared::CoordinatorShared;
use crate::event::LeaseEvent;
use crate::lease::LeaseStore;
use crate::lease::handle::{DrainReason, FinishReason, HandleState, HeldLease};
use crate::lease::heartbeat::Heartbeat;
use crate::lease::write_retry::WriteResult;
use crate::stream::api::StreamApi;
use anabranch_model::lease::plan::LeaseMove;
use anabranch_model::lease::{
    HandOver, Layout, Lease, LeaseChange, LeaseKey, LeaseToken, StoredRow, WorkerChange, WorkerId,
    Write, WriteRefusal,
};
use std::sync::Arc;
use tokio::task::JoinSet;

/// Time for which a plan is carried out, in busy poll intervals. The rest is planned again: on a
/// slow store other workers have moved meanwhile, and old moves would only be refused.
const FRESH_PAUSES: u64 = 2;

/// Maximum number of attempts to write a request to a KCL row whose owner keeps writing to it.
const ASKS: u32 = 4;

/// Executes the moves with bounded concurrency, while the poll that they are based on is fresh.
pub(super) async fn execute_moves<S: LeaseStore, A: StreamApi>(
    crew: &Arc<CoordinatorShared<S, A>>,
    me: &WorkerId,
    moves: Vec<LeaseMove>,
    gives: &mut JoinSet<()>,
) {
    let mut attempts = JoinSet::new();
    let stale_ms = crew.now_ms() + crew.settings().busy_poll_interval * FRESH_PAUSES;
    for step in moves {
        if let LeaseMove::HandOver { lease, to, .. } = &step
            && let Some(held) = crew.held_leases.get(lease)
        {
            request_drain(crew, &held, to, gives);
            continue;
        }
        while attempts.len() >= crew.settings().max_concurrent_writes {
            attempts.join_next().await;
        }
        if crew.now_ms() >= stale_ms {
            continue;
        }
        let (crew, me) = (crew.clone(), me.clone());
        attempts.spawn(async move { execute(&crew, &me, step).await });
    }
    while attempts.join_next().await.is_some() {}
}

/// Has the reader of a lease drain it, because another worker asked for it.
pub(super) fn request_drain<S: LeaseStore, A: StreamApi>(
    crew: &Arc<CoordinatorShared<S, A>>,
    held: &Arc<HeldLease>,
    to: &WorkerId,
    gives: &mut JoinSet<()>,
) {
    let why = DrainReason::HandOver { to: to.clone() };
    if held.request_drain(crew.now_ms() + crew.settings().drain_timeout, why) {
        let lease = held.taken_row().key.clone();
        crew.context.emit(LeaseEvent::Draining { lease, to: to.clone() });
    }
    if matches!(held.state(), HandleState::Waiting | HandleState::Retained) {
        begin_release(crew, held, gives);
    }
}

async fn execute<S: LeaseStore, A: StreamApi>(
    crew: &Arc<CoordinatorShared<S, A>>,
    me: &WorkerId,
    step: LeaseMove,
) {
    match step {
        LeaseMove::Take { lease, term }
        | LeaseMove::Retake { lease, term }
        | LeaseMove::Steal { lease, counter: term, .. } => take(crew, me, &lease, term).await,
        LeaseMove::Fence { worker, counter } => {
            let fence = WorkerChange::Fence { counter };
            let write = Write::worker(&worker, fence, crew.context.rng.nonce());
            if attempt(crew, "fence", &write).await.is_some() {
                crew.context.emit(LeaseEvent::WorkerFenced { worker });
            }
        }
        LeaseMove::WithdrawRequest { lease, term, taker } => {
            let mine = taker == *me;
            if change(crew, &lease, LeaseChange::WithdrawRequest { taker, term }).await {
                if mine {
                    crew.held_leases.forget_request(&lease);
                }
                crew.context.emit(LeaseEvent::HandOverWithdrawn { lease });
            }
        }
        LeaseMove::RequestHandOver { lease, term } => request_lease(crew, me, lease, term).await,
        // No shard runs under these leases: they were handed over to this worker, or taken, late.
        LeaseMove::HandOver { lease, term, to } => {
            let pass = LeaseChange::HandOver { owner: me.clone(), term, to: to.clone() };
            if change(crew, &lease, pass).await {
                crew.context.emit(LeaseEvent::LeaseHandedOver { lease, to });
            }
        }
        LeaseMove::Release { lease, term } => {
            if change(crew, &lease, LeaseChange::Release { owner: me.clone(), term }).await {
                crew.context.emit(LeaseEvent::LeaseReleased { lease });
            }
        }
    }
}

/// Asks for a lease. KCL's counter moves with every checkpoint of its owner, so a request that came
/// after one is sent again.
async fn request_lease<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    me: &WorkerId,
    lease: LeaseKey,
    mut term: u64,
) {
    let kcl = crew.context.store.layout() == Layout::Kcl;
    for _ in 0..ASKS {
        if kcl {
            crew.held_leases.note_request(&lease, term);
        }
        let name = LeaseChange::RequestHandOver { taker: me.clone(), term };
        let write = Write::lease(&lease, name, crew.context.rng.nonce());
        match crew.context.write_once(&write).await {
            WriteResult::Applied(_) => {
                return crew.context.emit(LeaseEvent::HandOverRequested { lease });
            }
            WriteResult::Refused { why: WriteRefusal::TermMoved, now: StoredRow::Lease(row) }
                if kcl =>
            {
                term = row.term;
            }
            WriteResult::Failed(error) => {
                crew.context.emit_store_failure("request a lease", &error);
                break;
            }
            WriteResult::Refused { now, .. } => {
                learn(crew, now);
                break;
            }
            // The request may be on the row.
            WriteResult::Unknown => return,
        }
    }
    crew.held_leases.forget_request(&lease);
}

/// KCL's layout: withdraws this worker's requests for leases that it no longer wants, and releases
/// those that were handed over to it meanwhile. KCL has no row that shows others that it has left.
pub(super) async fn withdraw_requests<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    me: &WorkerId,
) {
    for (lease, _) in crew.held_leases.requests() {
        if !crew.is_stopping() && crew.reads(&lease.stream) {
            continue;
        }
        let row = match crew.context.read_store(crew.context.store.get(&lease)).await {
            Ok(row) => row,
            Err(error) => {
                crew.context.emit_store_failure("read a lease", &error);
                if error.is_retryable() {
                    return;
                }
                continue;
            }
        };
        let term = row.as_ref().map_or(0, |row| row.term);
        let (undo, event) = match row {
            Some(row) if row.owner.as_ref() == Some(me) => {
                let owner = me.clone();
                (
                    LeaseChange::Release { owner, term },
                    LeaseEvent::LeaseReleased { lease: lease.clone() },
                )
            }
            Some(row) if row.hand_over == (HandOver::Requested { taker: me.clone() }) => {
                let taker = me.clone();
                (
                    LeaseChange::WithdrawRequest { taker, term },
                    LeaseEvent::HandOverWithdrawn { lease: lease.clone() },
                )
            }
            _ => {
                crew.held_leases.forget_request(&lease);
                continue;
            }
        };
        if change(crew, &lease, undo).await {
            crew.held_leases.forget_request(&lease);
            crew.context.emit(event);
        }
    }
}

async fn change<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    lease: &LeaseKey,
    change: LeaseChange,
) -> bool {
    let write = Write::lease(lease, change, crew.context.rng.nonce());
    attempt(crew, "change a lease", &write).await.is_some()
}

/// Makes one attempt. Returns the row if the write was applied.
async fn attempt<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    what: &'static str,
    write: &Write,
) -> Option<StoredRow> {
    match crew.context.write_once(write).await {
        WriteResult::Applied(row) => Some(row),
        WriteResult::Failed(error) => {
            crew.context.emit_store_failure(what, &error);
            None
        }
        WriteResult::Refused { now, .. } => {
            learn(crew, now);
            None
        }
        WriteResult::Unknown => None,
    }
}

/// Records the row that was returned with a refused write.
fn learn<S: LeaseStore, A: StreamApi>(crew: &CoordinatorShared<S, A>, now: StoredRow) {
    if let StoredRow::Lease(row) = now {
        crew.learned.add(*row);
    }
}

async fn take<S: LeaseStore, A: StreamApi>(
    crew: &Arc<CoordinatorShared<S, A>>,
    me: &WorkerId,
    key: &LeaseKey,
    term: u64,
) {
    let sent_ms = crew.now_ms();
    let take = LeaseChange::Take { taker: me.clone(), term };
    let write = Write::lease(key, take, crew.context.rng.nonce());
    // A stop waits for the answer: a lease taken behind its back would have no live owner for a
    // lease time.
    let _taking = crew.held_leases.begin_take();
    if let Some(StoredRow::Lease(lease)) = attempt(crew, "take", &write).await {
        add_held_lease(crew, me, *lease, sent_ms);
    }
}

/// Adds a lease that was taken. `lease` is the row that the take returned.
pub(super) fn add_held_lease<S: LeaseStore, A: StreamApi>(
    crew: &Arc<CoordinatorShared<S, A>>,
    me: &WorkerId,
    lease: Lease,
    sent_ms: u64,
) {
    let member = crew.held_leases.member();
    let Some(own) = lease.token().filter(|own| own.owner == *me) else { return };
    let pulse = match crew.context.store.layout() {
        Layout::Native => member.heartbeat.clone(),
        Layout::Kcl => Arc::new(Heartbeat::new(crew.settings().lease_time_ms, sent_ms)),
    };
    let (key, term) = (lease.key.clone(), lease.term);
    let created_ms = crew.created_ms(&key.stream);
    let held = Arc::new(HeldLease::new(lease, own, created_ms, pulse, crew.wake.clone(), sent_ms));
    if *me == member.id && crew.held_leases.insert(&member, held.clone()) {
        crew.context.emit(LeaseEvent::LeaseTaken { lease: key.clone(), worker: me.clone(), term });
    }
    // The stream may have been removed while the take was in flight: the lease is then released
    // unread. Checked after the insertion, so that a later removal finds the lease.
    if !crew.reads(&key.stream) {
        held.stop_delivery();
        held.request_drain(crew.now_ms(), DrainReason::StreamRemoved);
        crew.wake.notify_one();
    }
}

// Effects of a returned handle:
//
// | handle | native | KCL's layout |
// |---|---|---|
// | drained for another worker | handed over; retaken if that worker no longer asks | the same |
// | drained otherwise | released | released |
// | ended | released, so that the row names no owner | kept until the row is removed |
// | failed | released after a pause | released after a pause |
// | of a lost lease | nothing is written | nothing is written |

/// Starts the release of returned leases and of all others that are to be released. Returns true if
/// a shard has ended: rows of its children may exist that no poll has shown.
pub(super) fn process_finished<S: LeaseStore, A: StreamApi>(
    crew: &Arc<CoordinatorShared<S, A>>,
    gives: &mut JoinSet<()>,
) -> bool {
    let stopping = crew.is_stopping();
    let mut ended = false;
    for held in crew.held_leases.all() {
        ended |= held.state() == HandleState::Finished(FinishReason::Ended);
        if held.is_lost(crew.now_ms()) {
            drop_lost(crew, &held);
        } else if matches!(held.state(), HandleState::Finished(_))
            || ((stopping || held.is_draining()) && held.is_idle())
        {
            begin_release(crew, &held, gives);
        }
    }
    ended
}

/// Waits until a task has panicked, then processes finished leases in place of the poll loop. Runs
/// while the worker stops, and never returns.
pub(super) async fn process_finished_until_dropped<S: LeaseStore, A: StreamApi>(
    crew: &Arc<CoordinatorShared<S, A>>,
) {
    crew.task_guard.wait_for_panic().await;
    let mut gives = JoinSet::new();
    loop {
        process_finished(crew, &mut gives);
        crew.context.clock.sleep(crew.settings().busy_poll_interval).await;
    }
}

/// Drops a lost lease.
pub(super) fn drop_lost<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    held: &Arc<HeldLease>,
) {
    held.mark_lost();
    crew.held_leases.remove(held);
    crew.context.emit(LeaseEvent::LeaseLost { lease: held.taken_row().key.clone() });
}

/// Starts to release a lease or to hand it over.
pub(super) fn begin_release<S: LeaseStore, A: StreamApi>(
    crew: &Arc<CoordinatorShared<S, A>>,
    held: &Arc<HeldLease>,
    gives: &mut JoinSet<()>,
) {
    let how = match held.state() {
        HandleState::Finished(how) => how,
        HandleState::Waiting | HandleState::Retained => FinishReason::Drained,
        HandleState::Running | HandleState::Releasing => return,
    };
    if how == FinishReason::Ended && crew.context.store.layout() == Layout::Kcl {
        held.set_state(HandleState::Retained);
        return;
    }
    held.set_state(HandleState::Releasing);
    let (parts, crew, held) = (crew.task_guard.clone(), crew.clone(), held.clone());
    gives.spawn(parts.run(async move {
        if how == FinishReason::Failed {
            pause(&crew).await;
        }
        held.stop_delivery();
        held.write_unsaved(&crew.context).await;
        match held.draining_for().filter(|_| how == FinishReason::Drained && !crew.is_stopping()) {
            Some(to) => hand_over(&crew, &held, to).await,
            None => release(&crew, &held).await,
        }
        crew.held_leases.remove(&held);
        crew.wake.notify_one();
    }));
}

/// Waits for the failure backoff. Ends early if the worker stops, so that others can take the lease
/// at once.
async fn pause<S: LeaseStore, A: StreamApi>(crew: &CoordinatorShared<S, A>) {
    let until_ms = crew.now_ms() + crew.settings().failure_backoff;
    while crew.now_ms() < until_ms && !crew.is_stopping() {
        crew.context.clock.sleep(crew.settings().busy_poll_interval).await;
    }
}

async fn release<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    held: &Arc<HeldLease>,
) {
    let key = held.taken_row().key.clone();
    let own = held.row().await.hold.clone();
    let event = match write_while_alive(crew, held, &own.release(crew.context.rng.nonce())).await {
        WriteResult::Applied(_) => LeaseEvent::LeaseReleased { lease: key },
        _ => LeaseEvent::LeaseLost { lease: key },
    };
    crew.context.emit(event);
}

async fn hand_over<S: LeaseStore, A: StreamApi>(
    crew: &Arc<CoordinatorShared<S, A>>,
    held: &Arc<HeldLease>,
    mut to: WorkerId,
) {
    let mut own = held.row().await.hold.clone();
    loop {
        let write = own.hand_over(&to, crew.context.rng.nonce());
        match write_while_alive(crew, held, &write).await {
            WriteResult::Applied(_) => {
                let lease = own.key.clone();
                crew.context.emit(LeaseEvent::LeaseHandedOver { lease, to });
                return;
            }
            // Once this lease is lost, the row may be of a later take by this worker.
            WriteResult::Refused { why, now: StoredRow::Lease(row) }
                if !held.is_lost(crew.now_ms()) && is_mine(crew, &own, &row) =>
            {
                own.term = row.term;
                match row.hand_over {
                    // An older write of this worker moved KCL's counter.
                    HandOver::Requested { taker }
                        if taker == to && why == WriteRefusal::TermMoved => {}
                    // Another worker has asked since.
                    HandOver::Requested { taker } if taker != to => to = taker,
                    _ => return retake(crew, held, &own).await,
                }
            }
            _ => {
                crew.context.emit(LeaseEvent::LeaseLost { lease: own.key.clone() });
                return;
            }
        }
    }
}

/// Returns true if the row still belongs to this worker. Each write of an owner moves KCL's
/// counter.
fn is_mine<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    own: &LeaseToken,
    row: &Lease,
) -> bool {
    match crew.context.store.layout() {
        Layout::Native => own.is_of(row),
        Layout::Kcl => row.owner.as_ref() == Some(&own.owner),
    }
}

/// Takes the lease again, because no worker asks for it any more. The hand-over may still be
/// applied, so reading continues only under a new term.
async fn retake<S: LeaseStore, A: StreamApi>(
    crew: &Arc<CoordinatorShared<S, A>>,
    held: &Arc<HeldLease>,
    own: &LeaseToken,
) {
    let sent_ms = crew.now_ms();
    let write = own.retake(crew.context.rng.nonce());
    let _taking = crew.held_leases.begin_take();
    let settled = write_while_alive(crew, held, &write).await;
    crew.held_leases.remove(held);
    if let WriteResult::Applied(StoredRow::Lease(lease)) = settled {
        add_held_lease(crew, &own.owner, *lease, sent_ms);
    }
}

/// Retries a write until its result is known or the lease expires.
async fn write_while_alive<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    held: &HeldLease,
    write: &Write,
) -> WriteResult {
    crew.context.write(write, || held.heartbeat().expires_at_ms()).await
}
