//! A worker's membership in the fleet, and the heartbeat task.

use super::LeaseContext;
use super::shared::CoordinatorShared;
use crate::event::LeaseEvent;
use crate::lease::handle::{HandleState, HeldLease};
use crate::lease::heartbeat::Heartbeat;
use crate::lease::write_retry::WriteResult;
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::StreamApi;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Layout, LeaseValidity, StoredRow, WorkerChange, WorkerId, Write};
use std::sync::Arc;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;

/// One membership of this worker in the fleet. A worker that is fenced out joins again under
/// another id.
#[derive(Debug)]
pub(super) struct Membership {
    /// Worker id, unique to this join.
    pub(super) id: WorkerId,
    /// The worker's heartbeat. In KCL's layout it never beats and nothing depends on it.
    pub(super) heartbeat: Arc<Heartbeat>,
    /// The worker's row, as its own writes left it. The lock allows one write at a time.
    row: Mutex<WorkerRowState>,
}

/// The part of its own row that a worker tracks.
#[derive(Debug)]
struct WorkerRowState {
    counter: u64,
    /// The streams that the row names as read.
    reads: Vec<StreamName>,
}

/// The result of a beat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BeatResult {
    /// The beat was applied in time.
    Renewed,
    /// The store did not accept the beat. There is time for another.
    Missed,
    /// The worker was fenced, or its lease time is over.
    Expired,
}

impl Membership {
    /// Joins the fleet under a new id, as a reader of these streams. Waits for a store that can't
    /// be reached.
    pub(super) async fn join<S: LeaseStore, A>(
        tools: &LeaseContext<S, A>,
        reads: Vec<StreamName>,
    ) -> Result<Self, StoreError> {
        let settings = &tools.settings;
        loop {
            let bits = tools.rng.bits();
            let id = match tools.store.layout() {
                Layout::Native => WorkerId::of_join(&settings.name, bits),
                Layout::Kcl => WorkerId::of_kcl_join(&settings.name, bits, settings.lease_time_ms),
            };
            let sent_ms = tools.clock.now_ms();
            let pulse = Arc::new(Heartbeat::new(settings.lease_time_ms, sent_ms));
            let row = Mutex::new(WorkerRowState { counter: 0, reads: reads.clone() });
            let member = Self { id, heartbeat: pulse, row };
            if tools.store.layout() == Layout::Kcl {
                return Ok(member);
            }
            let (host, started_ms) = (settings.host.clone(), tools.clock.wall_ms());
            let (reads, lease_time_ms) = (Some(reads.clone()), Some(settings.lease_time_ms));
            let join = WorkerChange::Join { host, started_ms, reads, lease_time_ms };
            let write = Write::worker(&member.id, join, tools.rng.nonce());
            // A join that takes long is abandoned: its lease time began when it was first sent.
            match tools.write(&write, || sent_ms + settings.heartbeat_interval_ms()).await {
                WriteResult::Applied(_) => return Ok(member),
                WriteResult::Failed(error) if !error.is_retryable() => return Err(error),
                WriteResult::Failed(error) => tools.emit_store_failure("join", &error),
                WriteResult::Unknown | WriteResult::Refused { .. } => {}
            }
        }
    }

    /// Sends a beat, and writes the list of streams if it has changed. The lease time counts from
    /// the moment at which the beat was first sent.
    pub(super) async fn beat<S: LeaseStore, A>(
        &self,
        tools: &LeaseContext<S, A>,
        reads: Vec<StreamName>,
    ) -> BeatResult {
        self.write_heartbeat(tools, |row| {
            let counter = row.counter;
            if row.reads == reads {
                WorkerChange::Beat { counter }
            } else {
                WorkerChange::SetStreams { counter, streams: reads }
            }
        })
        .await
    }

    /// Writes on the row that the worker takes no more leases.
    pub(super) async fn announce_leaving<S: LeaseStore, A>(
        &self,
        tools: &LeaseContext<S, A>,
    ) -> BeatResult {
        let beat = self
            .write_heartbeat(tools, |row| WorkerChange::AnnounceLeaving { counter: row.counter })
            .await;
        if beat == BeatResult::Renewed {
            tools.emit(LeaseEvent::Leaving { worker: self.id.clone() });
        }
        beat
    }

    async fn write_heartbeat<S: LeaseStore, A>(
        &self,
        tools: &LeaseContext<S, A>,
        change: impl FnOnce(&WorkerRowState) -> WorkerChange,
    ) -> BeatResult {
        let mut known = self.row.lock().await;
        let sent_ms = tools.clock.now_ms();
        if self.heartbeat.validity(sent_ms) == LeaseValidity::Expired {
            return BeatResult::Expired;
        }
        let write = Write::worker(&self.id, change(&known), tools.rng.nonce());
        match tools.write(&write, || self.heartbeat.expires_at_ms()).await {
            WriteResult::Applied(StoredRow::Worker(row)) => {
                known.counter = row.counter;
                known.reads = row.reads.unwrap_or_default();
                let in_time = self.heartbeat.record_beat(sent_ms, tools.clock.now_ms());
                if in_time { BeatResult::Renewed } else { BeatResult::Expired }
            }
            WriteResult::Failed(error) if !self.heartbeat.is_expired(tools.clock.now_ms()) => {
                tools.emit_store_failure("heartbeat", &error);
                BeatResult::Missed
            }
            _ => BeatResult::Expired,
        }
    }

    /// Leaves the fleet, after the leases were released. Returns true if the row says so.
    ///
    /// The heartbeat task is stopped between two beats: a beat that is cut off may have moved the
    /// counter that this write must name.
    pub(super) async fn leave<S: LeaseStore, A>(
        &self,
        tools: &LeaseContext<S, A>,
        heart: &mut JoinSet<()>,
    ) -> bool {
        let beat_over = tokio::select! {
            biased;
            row = self.row.lock() => Some(row),
            () = tools.clock.sleep(tools.settings.call_timeout) => None,
        };
        heart.shutdown().await;
        let Some(row) = beat_over else { return false };
        let leave = WorkerChange::Leave { counter: row.counter };
        let write = Write::worker(&self.id, leave, tools.rng.nonce());
        self.heartbeat.stop();
        let until_ms = tools.clock.now_ms() + tools.settings.call_timeout;
        let left = matches!(tools.write(&write, || until_ms).await, WriteResult::Applied(_));
        if left {
            tools.emit(LeaseEvent::Left { worker: self.id.clone() });
            // If this fails, other workers delete the row in their next audit.
            let delete = Write::worker(&self.id, WorkerChange::Delete, tools.rng.nonce());
            let _tidied = tools.write_once(&delete).await;
        }
        left
    }
}

/// Fences an old id of this worker, so that no other worker has to wait for it. Only for an id
/// under which nothing runs any more. Returns true if the id is fenced or gone.
pub(super) async fn fence_own_id<S: LeaseStore, A>(
    tools: &LeaseContext<S, A>,
    id: &WorkerId,
) -> bool {
    match tools.read_store(tools.store.worker(id)).await {
        Ok(Some(row)) if row.is_alive() => {
            // Only this worker moves the counter, and a late beat of its own makes the fence fail.
            let fence = WorkerChange::Fence { counter: row.counter };
            let write = Write::worker(id, fence, tools.rng.nonce());
            matches!(tools.write_once(&write).await, WriteResult::Applied(_))
        }
        Ok(_) => true,
        Err(_) => false,
    }
}

// The task that sends the worker's heartbeats, or in KCL's layout those of its leases.
//
// It shares nothing with user code, so that a handler that blocks can't cost a lease.

/// An id that this worker gave up, and the leases whose handles may still be out.
type RetiredId = (WorkerId, Vec<Arc<HeldLease>>);

/// Sends heartbeats forever.
pub(super) async fn run<S: LeaseStore, A: StreamApi>(crew: Arc<CoordinatorShared<S, A>>) {
    let beat_ms = crew.settings().heartbeat_interval_ms();
    let mut ghosts: Vec<RetiredId> = Vec::new();
    let mut missed = false;
    let native = crew.context.store.layout() == Layout::Native;
    let room = Arc::new(Semaphore::new(crew.settings().max_concurrent_writes));
    let mut renewals = JoinSet::new();
    loop {
        // After a missed beat there is little time left.
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
            // The operator may fix the problem while this worker waits.
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

/// Fences the retired ids under which nothing runs any more, so that no other worker has to wait
/// for them.
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

/// KCL's layout: renews every lease, finished ones too. A slow row does not delay the others, now
/// or in the next round.
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
            // A lease that waits before its release is still held.
            if held.state() != HandleState::Releasing || !held.is_delivery_stopped() {
                held.renew(&crew.context).await;
            }
        });
    }
}
