//! What one look at the lease store shows, in the planner's own words.

use super::row::LeaseKey;
use super::worker_row::WorkerId;
use crate::ids::StreamName;

/// One look at the store: every worker row and every lease row.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FleetSnapshot {
    /// The worker rows. KCL's layout has none.
    pub workers: Vec<WorkerSnapshot>,
    /// The lease rows.
    pub leases: Vec<LeaseSnapshot>,
}

/// A worker row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerSnapshot {
    /// The worker.
    pub id: WorkerId,
    /// The counter that its beats move.
    pub counter: u64,
    /// What the row says about it.
    pub status: WorkerStatus,
    /// The streams that it reads, by name; `None` for all.
    pub reads: Option<Vec<StreamName>>,
    /// For how long it may be silent, in milliseconds; `None` if its row does not say.
    pub lease_time_ms: Option<u64>,
}

impl WorkerSnapshot {
    /// Whether it reads a stream.
    pub fn reads(&self, stream: &StreamName) -> bool {
        self.reads.as_ref().is_none_or(|streams| streams.binary_search(stream).is_ok())
    }
}

/// What a worker's row says about the worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerStatus {
    /// It takes part.
    Active,
    /// It is stopping: it takes nothing more and gives back what it has.
    Leaving,
    /// Another worker fenced it: it has stopped, and what it owned is free.
    Fenced,
    /// The row can't be read: the worker may beat, so what it owns stays with it.
    Unreadable,
}

/// What the planner needs of a lease row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseSnapshot {
    /// The lease.
    pub key: LeaseKey,
    /// Who owns it.
    pub owner: Option<WorkerId>,
    /// The lease's term; in KCL's layout its `leaseCounter`, which is also its heart.
    pub counter: u64,
    /// How far its shard is.
    pub phase: LeasePhase,
    /// The worker that asked the owner to hand it over.
    pub requested: Option<WorkerId>,
    /// The owner can't hand it over for now, because its handler can't be cancelled.
    pub refused: bool,
    /// What its shard carries, if somebody measured it.
    pub bytes_per_second: Option<u64>,
}

/// How far the shard of a lease is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeasePhase {
    /// It may be read.
    Ready,
    /// A parent has not ended.
    Blocked,
    /// Every record of it is done.
    Finished,
}

/// In the planner's tests there is one stream, and a lease goes by its shard.
#[cfg(test)]
impl From<&str> for LeaseKey {
    fn from(shard: &str) -> Self {
        Self::new("s", shard)
    }
}
