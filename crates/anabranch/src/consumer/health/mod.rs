//! How a consumer is: for probes, dashboards and whoever asks.

pub(super) mod telemetry;
pub(super) mod watchdog;
use self::telemetry::{FetchStep, ShardTelemetry};
use super::dispatch::memory::MemoryBudget;
use crate::clock::Clock;
use anabranch_model::lease::{Checkpoint, LeaseKey};
use anabranch_model::stuck_detector::ReadPhase;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// How a consumer is. Clones look at the same one; take it before
/// [`Consumer::run`](super::Consumer::run).
///
/// Asking locks nothing that the path of a record needs.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<HealthState>);

#[derive(Debug, Default)]
struct HealthState {
    /// How far the run is.
    stage: AtomicU8,
    /// The clock of the run, once there is one.
    clock: OnceLock<Clock>,
    /// The memory of the run, once there is one.
    budget: OnceLock<MemoryBudget>,
    /// The shards that are read.
    shards: Mutex<BTreeMap<Arc<LeaseKey>, Arc<ShardTelemetry>>>,
}

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RunStage {
    /// It has not begun, or looks for its stream and store.
    Starting = 0,
    /// It reads, or waits for shards to read.
    Running = 1,
    /// It gives its shards back.
    Stopping = 2,
    /// It is over.
    Ended = 3,
}

/// How one shard is.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct ShardHealth {
    /// The stream and shard.
    pub shard: Arc<LeaseKey>,
    /// What it is at; `None` while it waits for the next poll, or for room.
    pub phase: Option<ReadPhase>,
    /// Up to where the row says that it is done.
    pub checkpoint: Checkpoint,
    /// How old the record is that the handler was given last, in milliseconds; `None` before the
    /// first. It grows while the handler hangs, and also on a shard that nobody writes to: read it
    /// together with `behind_ms`.
    pub age: Option<u64>,
    /// How far the last reply was from the newest record (`MillisBehindLatest`); `None` before the
    /// first reply.
    pub behind_latest: Option<u64>,
    /// Records that were handled since this worker took the shard.
    pub records: u64,
    /// Their bytes, keys included.
    pub bytes: u64,
    /// In which phase it stands still for longer than it may, and for how many milliseconds.
    pub stuck: Option<(ReadPhase, u64)>,
    /// Whether its handler should have stopped and can't be stopped.
    pub blocked: bool,
}

impl Health {
    /// Whether the process is worth keeping: `false` when the consumer has ended by itself or by a
    /// stop, and while a handler runs that should have stopped and can't be stopped. For a liveness
    /// probe.
    pub fn is_live(&self) -> bool {
        self.stage() != RunStage::Ended
            && !self.telemetry().iter().any(|shard| shard.is_unstoppable())
    }

    /// Whether the worker has joined its fleet and is not stopping. For a readiness probe.
    pub fn is_ready(&self) -> bool {
        self.stage() == RunStage::Running
    }

    /// The shards that this worker reads, by stream and shard.
    pub fn shards(&self) -> Vec<ShardHealth> {
        let clock = self.0.clock.get();
        let (now_ms, wall_ms) = (clock.map_or(0, Clock::now_ms), clock.map_or(0, Clock::wall_ms));
        self.telemetry().iter().map(|vitals| health_of(vitals, now_ms, wall_ms)).collect()
    }

    /// The bytes of records that are held now, reservations of reads that are under way included,
    /// and the bytes that may be held.
    pub fn memory_bytes(&self) -> (usize, usize) {
        self.0.budget.get().map_or((0, 0), |budget| (budget.used_bytes(), budget.bytes()))
    }

    /// The signs of life of all shards.
    pub(super) fn telemetry(&self) -> Vec<Arc<ShardTelemetry>> {
        self.lock().values().cloned().collect()
    }

    /// A run begins by this clock and with this memory.
    pub(super) fn begin(&self, clock: &Clock, budget: &MemoryBudget) {
        // A consumer runs once.
        let _ = self.0.clock.set(clock.clone());
        let _ = self.0.budget.set(budget.clone());
    }

    /// The run is so far.
    pub(super) fn set_stage(&self, stage: RunStage) {
        self.0.stage.store(stage as u8, Ordering::Relaxed);
    }

    /// A shard is read from now on, until what is returned is dropped.
    pub(super) fn register(&self, vitals: Arc<ShardTelemetry>) -> ShardRegistration {
        self.lock().insert(Arc::clone(&vitals.shard), Arc::clone(&vitals));
        ShardRegistration { health: self.clone(), vitals }
    }

    fn stage(&self) -> RunStage {
        match self.0.stage.load(Ordering::Relaxed) {
            0 => RunStage::Starting,
            1 => RunStage::Running,
            2 => RunStage::Stopping,
            _ => RunStage::Ended,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<LeaseKey>, Arc<ShardTelemetry>>> {
        // Each change is one insertion or removal, so a panic leaves no half of one.
        self.0.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn health_of(vitals: &ShardTelemetry, now_ms: u64, wall_ms: u64) -> ShardHealth {
    let (step, totals) = (vitals.step(), vitals.totals());
    let phase = match step {
        // The lanes are full: it is the handler that everything waits for.
        FetchStep::Lanes => Some(ReadPhase::Handler),
        step => step.phase().or_else(|| vitals.is_handling().then_some(ReadPhase::Handler)),
    };
    ShardHealth {
        shard: Arc::clone(&vitals.shard),
        phase,
        checkpoint: vitals.checkpoint(),
        age: vitals.arrival_ms().map(|arrival_ms| wall_ms.saturating_sub(arrival_ms)),
        behind_latest: vitals.behind_ms(),
        records: totals.records,
        bytes: totals.bytes,
        stuck: vitals.stuck().map(|(phase, since_ms)| (phase, now_ms.saturating_sub(since_ms))),
        blocked: vitals.is_unstoppable(),
    }
}

/// A shard among those that are read. Dropped, it is no longer one of them.
pub(super) struct ShardRegistration {
    health: Health,
    vitals: Arc<ShardTelemetry>,
}

impl Drop for ShardRegistration {
    fn drop(&mut self) {
        let mut shards = self.health.lock();
        // The same shard may have been taken again meanwhile.
        if shards.get(&self.vitals.shard).is_some_and(|now| Arc::ptr_eq(now, &self.vitals)) {
            shards.remove(&self.vitals.shard);
        }
    }
}

/// Says that a run is over, however it ends.
pub(super) struct RunEndGuard(pub(super) Health);

impl Drop for RunEndGuard {
    fn drop(&mut self) {
        self.0.set_stage(RunStage::Ended);
    }
}
