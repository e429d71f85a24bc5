//! State of a running consumer, for probes and dashboards.

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

/// Handle to the state of a consumer. Clones share the same consumer. Obtain it before
/// [`Consumer::run`](super::Consumer::run).
///
/// Reading it takes no lock that the processing of a record needs.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<HealthState>);

#[derive(Debug, Default)]
struct HealthState {
    /// A [`RunStage`] as a number.
    stage: AtomicU8,
    /// Clock of the run, once it has begun.
    clock: OnceLock<Clock>,
    /// Memory budget of the run, once it has begun.
    budget: OnceLock<MemoryBudget>,
    /// The shards that this worker reads.
    shards: Mutex<BTreeMap<Arc<LeaseKey>, Arc<ShardTelemetry>>>,
}

/// Stage of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RunStage {
    /// The run has not begun, or is still preparing its stream and store.
    Starting = 0,
    /// The worker reads shards, or waits for shards to read.
    Running = 1,
    /// The worker releases its shards.
    Stopping = 2,
    /// The run has ended.
    Ended = 3,
}

/// State of one shard.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct ShardHealth {
    /// Stream and shard.
    pub shard: Arc<LeaseKey>,
    /// Current phase; `None` while the shard waits for the next poll or for memory.
    pub phase: Option<ReadPhase>,
    /// Checkpoint that the lease row holds.
    pub checkpoint: Checkpoint,
    /// Age in milliseconds of the record that was last passed to the handler; `None` before the
    /// first. It grows while the handler hangs, and also on a shard that receives no records: read
    /// it together with `behind_latest`.
    pub age: Option<u64>,
    /// Distance of the last reply from the newest record in milliseconds (`MillisBehindLatest`);
    /// `None` before the first reply.
    pub behind_latest: Option<u64>,
    /// Number of records handled since this worker took the shard.
    pub records: u64,
    /// Bytes of those records, keys included.
    pub bytes: u64,
    /// Phase that has exceeded its limit, and for how many milliseconds the shard has been stuck in
    /// it.
    pub stuck: Option<(ReadPhase, u64)>,
    /// True while a handler runs that should have stopped and cannot be stopped.
    pub blocked: bool,
}

impl Health {
    /// Returns true while the process is worth keeping, for a liveness probe. False once the run
    /// has ended, and while a handler runs that should have stopped and cannot be stopped.
    pub fn is_live(&self) -> bool {
        self.stage() != RunStage::Ended
            && !self.telemetry().iter().any(|shard| shard.is_unstoppable())
    }

    /// Returns true while the worker is a member of its fleet and is not stopping, for a readiness
    /// probe.
    pub fn is_ready(&self) -> bool {
        self.stage() == RunStage::Running
    }

    /// Returns the shards that this worker reads, ordered by stream and shard.
    pub fn shards(&self) -> Vec<ShardHealth> {
        let clock = self.0.clock.get();
        let (now_ms, wall_ms) = (clock.map_or(0, Clock::now_ms), clock.map_or(0, Clock::wall_ms));
        self.telemetry().iter().map(|vitals| health_of(vitals, now_ms, wall_ms)).collect()
    }

    /// Returns the bytes of records held now, including reservations of reads in flight, and the
    /// size of the memory budget in bytes.
    pub fn memory_bytes(&self) -> (usize, usize) {
        self.0.budget.get().map_or((0, 0), |budget| (budget.used_bytes(), budget.bytes()))
    }

    /// Returns the telemetry of all shards, ordered by key.
    pub(super) fn telemetry(&self) -> Vec<Arc<ShardTelemetry>> {
        self.lock().values().cloned().collect()
    }

    /// Sets the clock and the memory budget of the run.
    pub(super) fn begin(&self, clock: &Clock, budget: &MemoryBudget) {
        // A consumer runs only once.
        let _ = self.0.clock.set(clock.clone());
        let _ = self.0.budget.set(budget.clone());
    }

    pub(super) fn set_stage(&self, stage: RunStage) {
        self.0.stage.store(stage as u8, Ordering::Relaxed);
    }

    /// Registers a shard until the returned guard is dropped.
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
        // Each change is one insertion or removal, so a panic leaves no inconsistent state.
        self.0.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn health_of(vitals: &ShardTelemetry, now_ms: u64, wall_ms: u64) -> ShardHealth {
    let (step, totals) = (vitals.step(), vitals.totals());
    let phase = match step {
        // The lanes are full, so the shard waits for the handler.
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

/// Registration of a shard. Dropping it removes the shard.
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

/// Marks the run as ended when dropped, however the run ends.
pub(super) struct RunEndGuard(pub(super) Health);

impl Drop for RunEndGuard {
    fn drop(&mut self) {
        self.0.set_stage(RunStage::Ended);
    }
}
