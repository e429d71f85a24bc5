//! Snapshot of the lease store, as input for the planner.

use super::row::LeaseKey;
use super::worker_row::WorkerId;
use crate::ids::StreamName;

/// One poll of the store: all worker rows and all lease rows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FleetSnapshot {
    /// Worker rows; empty in KCL's layout.
    pub workers: Vec<WorkerSnapshot>,
    /// Lease rows.
    pub leases: Vec<LeaseSnapshot>,
}

/// A worker row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerSnapshot {
    /// Worker id.
    pub id: WorkerId,
    /// Heartbeat counter.
    pub counter: u64,
    /// Status of the worker, by its row.
    pub status: WorkerStatus,
    /// Names of the streams that it reads, sorted; `None` for all.
    pub reads: Option<Vec<StreamName>>,
    /// Lease time of the worker in milliseconds, or `None` if its row has none.
    pub lease_time_ms: Option<u64>,
}

impl WorkerSnapshot {
    /// Returns true if the worker reads a stream.
    pub fn reads(&self, stream: &StreamName) -> bool {
        self.reads.as_ref().is_none_or(|streams| streams.binary_search(stream).is_ok())
    }
}

/// Status of a worker, by its row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerStatus {
    /// It takes part.
    Active,
    /// It is stopping: it takes no more leases and releases its own.
    Leaving,
    /// It was fenced by another worker: it has stopped, and its leases are free.
    Fenced,
    /// Its row cannot be read. It may still be alive, so it keeps its leases.
    Unreadable,
}

/// The fields of a lease row that the planner uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseSnapshot {
    /// Key of the lease.
    pub key: LeaseKey,
    /// Owner, if there is one.
    pub owner: Option<WorkerId>,
    /// Term of the lease; in KCL's layout its `leaseCounter`, which is also its heartbeat.
    pub counter: u64,
    /// Phase of its shard.
    pub phase: LeasePhase,
    /// Worker that requested a hand-over from the owner.
    pub requested: Option<WorkerId>,
    /// True if the owner cannot hand it over now, because its handler cannot be cancelled.
    pub refused: bool,
    /// Throughput of its shard, if it was measured.
    pub bytes_per_second: Option<u64>,
}

/// Phase of a lease's shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeasePhase {
    /// The shard may be read.
    Ready,
    /// A parent has not ended.
    Blocked,
    /// Every record of the shard is processed.
    Finished,
}

/// The planner's tests use a single stream, so a shard name identifies a lease.
#[cfg(test)]
impl From<&str> for LeaseKey {
    fn from(shard: &str) -> Self {
        Self::new("s", shard)
    }
}
