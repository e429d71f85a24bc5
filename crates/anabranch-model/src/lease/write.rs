//! Conditional writes to a lease store.
//!
//! A write names one row and carries the values for its condition. Each layout has its own rules
//! for the same writes: see [`table`](super::table).

use super::checkpoint::{Checkpoint, PendingCheckpoint};
use super::row::{LeaseKey, NewLease};
use super::worker_row::WorkerId;
use crate::hash::HashRange;
use crate::ids::{ShardId, StreamName};

/// A random number that identifies a write, so that a later read can recognise it.
///
/// A retry of a write with an unknown result sends the *same* write with the same nonce, so that
/// either attempt is recognised.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct Nonce(pub u64);

/// A conditional write.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Write {
    /// Write to the row of a lease.
    Lease {
        /// Key of the lease.
        key: LeaseKey,
        /// Change and its condition.
        change: LeaseChange,
        /// Identifies the write.
        nonce: Nonce,
    },
    /// Write to the row of a worker.
    Worker {
        /// Id of the worker.
        id: WorkerId,
        /// Change and its condition.
        change: WorkerChange,
        /// Identifies the write.
        nonce: Nonce,
    },
    /// Write to the application's facts about a stream. The first write wins, so it needs no nonce.
    Stream {
        /// Name of the stream.
        stream: StreamName,
        /// Facts to store.
        change: StreamChange,
    },
}

/// Change of a lease's row.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum LeaseChange {
    /// Create the row, unless there is one.
    Create(Box<NewLease>),
    /// Renew the lease's own heartbeat (KCL's layout only).
    Renew {
        /// Current owner.
        owner: WorkerId,
        /// Expected counter.
        term: u64,
    },
    /// Become the owner. In the native layout only of a free lease: one without an owner, the
    /// taker's own, or one of a fenced worker.
    Take {
        /// New owner.
        taker: WorkerId,
        /// Term as listed; the new one is one more.
        term: u64,
    },
    /// Release the lease. The owner delivers nothing more under this term once it has sent this.
    Release {
        /// Current owner.
        owner: WorkerId,
        /// Expected term.
        term: u64,
    },
    /// Ask the owner to hand the lease over.
    RequestHandOver {
        /// Worker that requests it.
        taker: WorkerId,
        /// Term as listed.
        term: u64,
    },
    /// Withdraw the request.
    WithdrawRequest {
        /// Worker that requested it.
        taker: WorkerId,
        /// Term as listed.
        term: u64,
    },
    /// Refuse hand-over requests, because the handler cannot be stopped.
    RefuseHandOver {
        /// Current owner.
        owner: WorkerId,
        /// Expected term.
        term: u64,
    },
    /// Allow hand-over requests again.
    AllowHandOver {
        /// Current owner.
        owner: WorkerId,
        /// Expected term.
        term: u64,
    },
    /// Hand the lease over to the worker that requested it. The owner delivers nothing more under
    /// this term once it has sent this.
    HandOver {
        /// Current owner.
        owner: WorkerId,
        /// Expected term.
        term: u64,
        /// Worker that requested it.
        to: WorkerId,
    },
    /// Write a checkpoint.
    Checkpoint {
        /// Current owner.
        owner: WorkerId,
        /// Expected term.
        term: u64,
        /// Checkpoint that this one replaces, so that a late write cannot undo a newer one.
        replaces: Checkpoint,
        /// New checkpoint.
        to: Checkpoint,
        /// Prepared checkpoint; `None` clears it.
        pending: Option<PendingCheckpoint>,
        /// Read rate of the owner, in bytes per second; `None` keeps the stored one. KCL's layout
        /// does not store it.
        bytes_per_second: Option<u64>,
    },
    /// Mark the shard as completely processed.
    End {
        /// Current owner.
        owner: WorkerId,
        /// Expected term.
        term: u64,
        /// Checkpoint that the end replaces.
        replaces: Checkpoint,
    },
    /// Record the children of the shard, just before its end.
    NoteChildren(Vec<ShardId>),
    /// Record the hash range of the shard, if an older row lacks it.
    NoteRange(HashRange),
    /// Remove the row of a finished shard that is no longer listed.
    Delete {
        /// Term as listed.
        term: u64,
    },
}

/// Change of a worker's row.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum WorkerChange {
    /// Create the row. The id is new, so there is none.
    Join {
        /// Host of the worker.
        host: String,
        /// Start time by the worker's clock, in milliseconds since the Unix epoch.
        started_ms: u64,
        /// Names of the streams that it reads; `None` counts as all.
        reads: Option<Vec<StreamName>>,
        /// Maximum time without a heartbeat before the worker is fenced, in milliseconds; `None`
        /// leaves it to the watchers.
        lease_time_ms: Option<u64>,
    },
    /// Send a heartbeat.
    Beat {
        /// Counter as last known to the worker; the new one is one more.
        counter: u64,
    },
    /// Set the streams that the worker reads. Counts as a heartbeat.
    SetStreams {
        /// Counter as last known to the worker; the new one is one more.
        counter: u64,
        /// Stream names.
        streams: Vec<StreamName>,
    },
    /// Announce that the worker is stopping, so that others take over the leases it releases.
    /// Counts as a heartbeat.
    AnnounceLeaving {
        /// Counter as last known to the worker; the new one is one more.
        counter: u64,
    },
    /// Fence a worker without a heartbeat for its lease time.
    Fence {
        /// Counter as watched, never a newer one.
        counter: u64,
    },
    /// Leave the fleet. The worker has released its leases.
    Leave {
        /// Counter as last known to the worker.
        counter: u64,
    },
    /// Remove the row of a worker that left or was fenced, once it owns no lease.
    Delete,
}

/// Change of the application's facts about a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum StreamChange {
    /// Record the first start of the application on the stream. The first write wins.
    NoteStart {
        /// Current time by the service's clock, in milliseconds since the Unix epoch.
        t0_ms: u64,
        /// Creation time of the stream, in milliseconds since the Unix epoch.
        created_ms: u64,
    },
    /// Record that every row of the first sync was created.
    MarkSynced {
        /// Creation time of the stream that the rows belong to.
        created_ms: u64,
    },
}

impl Write {
    /// Creates a write to the row of a lease.
    pub fn lease(key: &LeaseKey, change: LeaseChange, nonce: Nonce) -> Self {
        Self::Lease { key: key.clone(), change, nonce }
    }

    /// Creates a write to the row of a worker.
    pub fn worker(id: &WorkerId, change: WorkerChange, nonce: Nonce) -> Self {
        Self::Worker { id: id.clone(), change, nonce }
    }

    /// Creates a write to the application's facts about a stream.
    pub fn stream(stream: &StreamName, change: StreamChange) -> Self {
        Self::Stream { stream: stream.clone(), change }
    }

    /// Returns true if the plan may change with this write, so that it increments the application's
    /// version in the same step. Heartbeats and checkpoints, which are most of the writes, do not.
    pub fn changes_plan(&self) -> bool {
        match self {
            Self::Lease { change, .. } => !matches!(
                change,
                LeaseChange::Renew { .. }
                    | LeaseChange::Checkpoint { .. }
                    | LeaseChange::NoteChildren(_)
                    | LeaseChange::NoteRange(_)
            ),
            Self::Worker { change, .. } => !matches!(change, WorkerChange::Beat { .. }),
            // Workers wait for this mark before they take leases.
            Self::Stream { change, .. } => matches!(change, StreamChange::MarkSynced { .. }),
        }
    }
}
