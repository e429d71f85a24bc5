//! One join of this worker: its id and its heart.

use super::Tools;
use crate::event::LeaseEvent;
use crate::lease::pulse::Pulse;
use crate::lease::settle::Settled;
use crate::lease::{LeaseStore, StoreError};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Layout, Stored, Tenure, WorkerChange, WorkerId, Write};
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// One join of this worker.
#[derive(Debug)]
pub(super) struct Member {
    /// Its id, which no other join ever has.
    pub(super) id: WorkerId,
    /// Its heart. In KCL's layout it never beats and nothing depends on it.
    pub(super) pulse: Arc<Pulse>,
    /// Its row, as its own writes left it. One write at a time.
    row: Mutex<OwnRow>,
}

/// What a worker knows of its own row.
#[derive(Debug)]
struct OwnRow {
    /// Its counter.
    counter: u64,
    /// The streams that it says to read.
    reads: Vec<StreamName>,
}

/// Whether the heart goes on after a beat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Beat {
    /// It does.
    Counts,
    /// The store would not take the beat. There is time for another.
    Missed,
    /// It was fenced, or its time is over.
    Dead,
}

impl Member {
    /// Joins the fleet under a new id, as a reader of these streams. Waits for a store that can't
    /// be reached.
    pub(super) async fn join<S: LeaseStore, A>(
        tools: &Tools<S, A>,
        reads: Vec<StreamName>,
    ) -> Result<Self, StoreError> {
        let settings = &tools.settings;
        loop {
            let bits = tools.chance.bits();
            let id = match tools.store.layout() {
                Layout::Native => WorkerId::of_join(&settings.name, bits),
                Layout::Kcl => WorkerId::of_kcl_join(&settings.name, bits, settings.lease_time_ms),
            };
            let sent_ms = tools.clock.now_ms();
            let pulse = Arc::new(Pulse::new(settings.lease_time_ms, sent_ms));
            let row = Mutex::new(OwnRow { counter: 0, reads: reads.clone() });
            let member = Self { id, pulse, row };
            if tools.store.layout() == Layout::Kcl {
                return Ok(member);
            }
            let (host, started_ms) = (settings.host.clone(), tools.clock.wall_ms());
            let (reads, lease_time_ms) = (Some(reads.clone()), Some(settings.lease_time_ms));
            let join = WorkerChange::Join { host, started_ms, reads, lease_time_ms };
            let write = Write::worker(&member.id, join, tools.chance.nonce());
            // A join that takes long is given up: its lease time began when it was first sent.
            match tools.settle(&write, || sent_ms + settings.beat_ms()).await {
                Settled::Applied(_) => return Ok(member),
                Settled::Failed(error) if !error.is_retryable() => return Err(error),
                Settled::Failed(error) => tools.trouble("join", &error),
                Settled::Unknown | Settled::Refused { .. } => {}
            }
        }
    }

    /// Moves the heart, and says which streams the worker reads if that has changed. It counts from
    /// the moment that the beat was first sent.
    pub(super) async fn beat<S: LeaseStore, A>(
        &self,
        tools: &Tools<S, A>,
        reads: Vec<StreamName>,
    ) -> Beat {
        self.pulsate(tools, |row| {
            let counter = row.counter;
            if row.reads == reads {
                WorkerChange::Beat { counter }
            } else {
                WorkerChange::Reads { counter, streams: reads }
            }
        })
        .await
    }

    /// Says on the row that the worker takes nothing more.
    pub(super) async fn retire<S: LeaseStore, A>(&self, tools: &Tools<S, A>) -> Beat {
        let beat = self.pulsate(tools, |row| WorkerChange::Retire { counter: row.counter }).await;
        if beat == Beat::Counts {
            tools.tell(LeaseEvent::Retired { worker: self.id.clone() });
        }
        beat
    }

    async fn pulsate<S: LeaseStore, A>(
        &self,
        tools: &Tools<S, A>,
        change: impl FnOnce(&OwnRow) -> WorkerChange,
    ) -> Beat {
        let mut known = self.row.lock().await;
        let sent_ms = tools.clock.now_ms();
        if self.pulse.tenure(sent_ms) == Tenure::Over {
            return Beat::Dead;
        }
        let write = Write::worker(&self.id, change(&known), tools.chance.nonce());
        match tools.settle(&write, || self.pulse.over_ms()).await {
            Settled::Applied(Stored::Worker(row)) => {
                known.counter = row.counter;
                known.reads = row.reads.unwrap_or_default();
                let in_time = self.pulse.beat(sent_ms, tools.clock.now_ms());
                if in_time { Beat::Counts } else { Beat::Dead }
            }
            Settled::Failed(error) if !self.pulse.is_over(tools.clock.now_ms()) => {
                tools.trouble("beat", &error);
                Beat::Missed
            }
            _ => Beat::Dead,
        }
    }

    /// Leaves: the leases were given back, and no beat follows. Returns whether the row says so.
    ///
    /// The heart is stopped between two beats: one that is cut off may have moved the counter that
    /// the farewell has to name.
    pub(super) async fn leave<S: LeaseStore, A>(
        &self,
        tools: &Tools<S, A>,
        heart: &mut JoinSet<()>,
    ) -> bool {
        let beat_over = tokio::select! {
            biased;
            row = self.row.lock() => Some(row),
            () = tools.clock.sleep(tools.settings.call_ms) => None,
        };
        heart.shutdown().await;
        let Some(row) = beat_over else { return false };
        let leave = WorkerChange::Leave { counter: row.counter };
        let write = Write::worker(&self.id, leave, tools.chance.nonce());
        self.pulse.stop();
        let until_ms = tools.clock.now_ms() + tools.settings.call_ms;
        let left = matches!(tools.settle(&write, || until_ms).await, Settled::Applied(_));
        if left {
            tools.tell(LeaseEvent::Left { worker: self.id.clone() });
            // Others do it at their next audit, if this fails.
            let delete = Write::worker(&self.id, WorkerChange::Delete, tools.chance.nonce());
            let _tidied = tools.attempt(&delete).await;
        }
        left
    }
}

/// Shuts out an id of this worker's own that will never come back, so that nobody has to wait for
/// it. Only once nothing runs under it any more. Returns whether that is done.
pub(super) async fn bury<S: LeaseStore, A>(tools: &Tools<S, A>, id: &WorkerId) -> bool {
    match tools.read(tools.store.worker(id)).await {
        Ok(Some(row)) if row.is_alive() => {
            // Nobody else moves this counter, and a late beat of its own makes the fence fail.
            let fence = WorkerChange::Fence { counter: row.counter };
            let write = Write::worker(id, fence, tools.chance.nonce());
            matches!(tools.attempt(&write).await, Settled::Applied(_))
        }
        Ok(_) => true,
        Err(_) => false,
    }
}
