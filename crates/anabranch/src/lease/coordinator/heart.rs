//! The task that keeps the worker's heart, or in KCL's layout its leases' hearts, beating.
//!
//! It shares nothing with user code, so that a handler that blocks can't cost a lease.

use super::crew::CoordinatorShared;
use super::member::{BeatResult, Membership, fence_own_id};
use crate::event::LeaseEvent;
use crate::lease::LeaseStore;
use crate::lease::grip::{HandleState, HeldLease};
use crate::stream::api::StreamApi;
use anabranch_model::lease::{Layout, WorkerId};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// An id that this worker gave up, and the leases whose grips may still be out.
type RetiredId = (WorkerId, Vec<Arc<HeldLease>>);

/// Beats for ever.
pub(super) async fn run<S: LeaseStore, A: StreamApi>(crew: Arc<CoordinatorShared<S, A>>) {
    let beat_ms = crew.settings().heartbeat_interval_ms();
    let mut ghosts: Vec<RetiredId> = Vec::new();
    let mut missed = false;
    let native = crew.context.store.layout() == Layout::Native;
    let room = Arc::new(Semaphore::new(crew.settings().max_concurrent_writes));
    let mut renewals = JoinSet::new();
    loop {
        // A worker whose beat the store would not take has no time to lose.
        let pause_ms = if missed { beat_ms / 4 } else { beat_ms };
        let pause_ms = pause_ms - crew.context.rng.below(pause_ms / 8);
        tokio::select! {
            biased;
            () = crew.reads_changed.notified(), if native => {}
            () = crew.context.clock.sleep(pause_ms) => {}
        }
        if !native {
            renew_all(&crew, &room, &mut renewals);
            continue;
        }
        let member = crew.held_leases.member();
        match member.beat(&crew.context, crew.stream_names()).await {
            BeatResult::Renewed => missed = false,
            BeatResult::Missed => missed = true,
            BeatResult::Expired => {
                missed = false;
                ghosts.push(rejoin_after_expiry(&crew, &member).await);
            }
        }
        fence_retired_ids(&crew, &mut ghosts).await;
    }
}

/// Stops all deliveries at once, forgets the leases, and joins again under another id.
async fn rejoin_after_expiry<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    member: &Membership,
) -> RetiredId {
    member.heartbeat.stop();
    let mut lost = crew.held_leases.take_all(&member.id);
    mark_all_lost(crew, &lost);
    crew.context.emit(LeaseEvent::Evicted { worker: member.id.clone() });
    let joined = loop {
        match Membership::join(&crew.context, crew.stream_names()).await {
            Ok(joined) => break joined,
            // What needs somebody's help may get it while this worker waits.
            Err(error) => {
                crew.context.emit_store_failure("join", &error);
                crew.context.clock.sleep(crew.settings().heartbeat_interval_ms()).await;
            }
        }
    };
    crew.context.emit(LeaseEvent::Joined { worker: joined.id.clone() });
    let late = crew.held_leases.rejoin(Arc::new(joined));
    mark_all_lost(crew, &late);
    lost.extend(late);
    crew.wake.notify_one();
    (member.id.clone(), lost)
}

fn mark_all_lost<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    lost: &[Arc<HeldLease>],
) {
    for held in lost {
        held.mark_lost();
        crew.context.emit(LeaseEvent::LeaseLost { lease: held.taken_row().key.clone() });
    }
}

/// Nobody has to wait for an id of this worker under which nothing runs any more.
async fn fence_retired_ids<S: LeaseStore, A: StreamApi>(
    crew: &CoordinatorShared<S, A>,
    ghosts: &mut Vec<RetiredId>,
) {
    let mut left = Vec::new();
    for (id, lost) in ghosts.drain(..) {
        let quiet = lost.iter().all(|held| held.is_idle());
        if !quiet || !fence_own_id(&crew.context, &id).await {
            left.push((id, lost));
        }
    }
    *ghosts = left;
}

/// KCL's layout: moves the heart of every lease, finished ones too. A row that is slow doesn't keep
/// the others waiting, now or at the next turn.
fn renew_all<S: LeaseStore, A: StreamApi>(
    crew: &Arc<CoordinatorShared<S, A>>,
    room: &Arc<Semaphore>,
    renewals: &mut JoinSet<()>,
) {
    while renewals.try_join_next().is_some() {}
    for held in crew.held_leases.all() {
        let (crew, room) = (crew.clone(), room.clone());
        renewals.spawn(async move {
            let _room = room.acquire().await;
            // A lease that waits before it is released is held all the same.
            if held.state() != HandleState::Releasing || !held.is_delivery_stopped() {
                held.renew(&crew.context).await;
            }
        });
    }
}
