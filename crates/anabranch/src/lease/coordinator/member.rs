//! One join of this worker: its id and its heart.

use super::LeaseContext;
use crate::event::LeaseEvent;
use crate::lease::pulse::Heartbeat;
use crate::lease::settle::WriteResult;
use crate::lease::{LeaseStore, StoreError};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Layout, LeaseValidity, StoredRow, WorkerChange, WorkerId, Write};
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// One join of this worker.
#[derive(Debug)]
pub(super) struct Membership {
    /// Its id, which no other join ever has.
    pub(super) id: WorkerId,
    /// Its heart. In KCL's layout it never beats and nothing depends on it.
    pub(super) heartbeat: Arc<Heartbeat>,
    /// Its row, as its own writes left it. One write at a time.
    row: Mutex<WorkerRowState>,
}

/// What a worker knows of its own row.
#[derive(Debug)]
struct WorkerRowState {
    /// Its counter.
    counter: u64,
    /// The streams that it says to read.
    reads: Vec<StreamName>,
}

/// Whether the heart goes on after a beat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BeatResult {
    /// It does.
    Renewed,
    /// The store would not take the beat. There is time for another.
    Missed,
    /// It was fenced, or its time is over.
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
            // A join that takes long is given up: its lease time began when it was first sent.
            match tools.write(&write, || sent_ms + settings.heartbeat_interval_ms()).await {
                WriteResult::Applied(_) => return Ok(member),
                WriteResult::Failed(error) if !error.is_retryable() => return Err(error),
                WriteResult::Failed(error) => tools.emit_store_failure("join", &error),
                WriteResult::Unknown | WriteResult::Refused { .. } => {}
            }
        }
    }

    /// Moves the heart, and says which streams the worker reads if that has changed. It counts from
    /// the moment that the beat was first sent.
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

    /// Says on the row that the worker takes nothing more.
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
                tools.emit_store_failure("beat", &error);
                BeatResult::Missed
            }
            _ => BeatResult::Expired,
        }
    }

    /// Leaves: the leases were given back, and no beat follows. Returns whether the row says so.
    ///
    /// The heart is stopped between two beats: one that is cut off may have moved the counter that
    /// the farewell has to name.
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
            // Others do it at their next audit, if this fails.
            let delete = Write::worker(&self.id, WorkerChange::Delete, tools.rng.nonce());
            let _tidied = tools.write_once(&delete).await;
        }
        left
    }
}

/// Shuts out an id of this worker's own that will never come back, so that nobody has to wait for
/// it. Only once nothing runs under it any more. Returns whether that is done.
pub(super) async fn fence_own_id<S: LeaseStore, A>(
    tools: &LeaseContext<S, A>,
    id: &WorkerId,
) -> bool {
    match tools.read_store(tools.store.worker(id)).await {
        Ok(Some(row)) if row.is_alive() => {
            // Nobody else moves this counter, and a late beat of its own makes the fence fail.
            let fence = WorkerChange::Fence { counter: row.counter };
            let write = Write::worker(id, fence, tools.rng.nonce());
            matches!(tools.write_once(&write).await, WriteResult::Applied(_))
        }
        Ok(_) => true,
        Err(_) => false,
    }
}
