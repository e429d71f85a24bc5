//! What becomes of a lease when its grip comes back.
//!
//! | the grip | native | KCL's layout |
//! |---|---|---|
//! | drained for another worker | passed on; taken again if that worker no longer asks | the same |
//! | drained otherwise | released | released |
//! | ended | released, so that the row names nobody | kept until the row goes |
//! | failed | released after a pause | released after a pause |
//! | of a lost lease | nothing is written | nothing is written |

use super::act::add_held_lease;
use super::crew::CoordinatorShared;
use crate::event::LeaseEvent;
use crate::lease::LeaseStore;
use crate::lease::grip::{FinishReason, HandleState, HeldLease};
use crate::lease::settle::WriteResult;
use crate::stream::api::StreamApi;
use anabranch_model::lease::{
    HandOver, Layout, Lease, LeaseToken, StoredRow, WorkerId, Write, WriteRefusal,
};
use std::sync::Arc;
use tokio::task::JoinSet;

/// Gives back what came back, and everything else that is to be given back. Returns whether a
/// shard has ended: then there may be rows of its children that no look has shown.
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

/// Does the same for a task that has panicked, while the worker stops.
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

/// Lets go of a lease that is lost.
pub(super) fn drop_lost<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    held: &Arc<HeldLease>,
) {
    held.mark_lost();
    crew.held_leases.remove(held);
    crew.context.emit(LeaseEvent::LeaseLost { lease: held.taken_row().key.clone() });
}

/// Begins to give a lease back or to pass it on.
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

/// Others may have a go at once when this worker is stopping.
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
            WriteResult::Refused { why, now: StoredRow::Lease(row) }
                if is_mine(crew, &own, &row) =>
            {
                own.term = row.term;
                match row.hand_over {
                    // An older write of mine moved KCL's counter.
                    HandOver::Requested { taker }
                        if taker == to && why == WriteRefusal::TermMoved => {}
                    // Another worker asks by now.
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

/// Whether the row is still this worker's. Each write of an owner moves KCL's counter.
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

/// Nobody asks any more. The pass may still be on its way, so the reading goes on under a new term
/// only.
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

/// Carries a write to its end while the heart beats.
async fn write_while_alive<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    held: &HeldLease,
    write: &Write,
) -> WriteResult {
    crew.context.write(write, || held.heartbeat().expires_at_ms()).await
}
