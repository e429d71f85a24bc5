//! Every write to a lease store, in domain words.
//!
//! A write names one row and carries what its condition needs. Each layout has its own rules for
//! the same writes: see [`table`](super::table).

use super::checkpoint::{Checkpoint, PendingCheckpoint};
use super::row::{LeaseKey, NewLease};
use super::worker_row::WorkerId;
use crate::hash::HashRange;
use crate::ids::{ShardId, StreamName};

/// A random number that tells one write from all others, so that a read-back can recognise it.
///
/// A retry of a write whose fate is unknown sends the *same* write with the same nonce: whichever
/// copy arrives, it is this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct Nonce(pub u64);

/// One conditional write.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Write {
    /// To the row of a lease.
    Lease {
        /// Which lease.
        key: LeaseKey,
        /// What to change, and under which condition.
        change: LeaseChange,
        /// Which write this is.
        nonce: Nonce,
    },
    /// To the row of a worker.
    Worker {
        /// Which worker.
        id: WorkerId,
        /// What to change, and under which condition.
        change: WorkerChange,
        /// Which write this is.
        nonce: Nonce,
    },
    /// To the application's facts about a stream. First come, first served: no nonce needed.
    Stream {
        /// Which stream.
        stream: StreamName,
        /// What to note.
        change: StreamChange,
    },
}

/// A change of a lease's row.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum LeaseChange {
    /// Make the row, unless there is one.
    Create(Box<NewLease>),
    /// Move the lease's own heart (KCL's layout only).
    Renew {
        /// Who holds it.
        owner: WorkerId,
        /// Under which term.
        term: u64,
    },
    /// Become the owner. In the native layout only of a lease that is free: without an owner,
    /// mine already, or of a fenced worker.
    Take {
        /// The new owner.
        taker: WorkerId,
        /// The term as listed; the new one is one more.
        term: u64,
    },
    /// Give the lease up. The owner delivers nothing more under this term once it has sent this.
    Release {
        /// Who holds it.
        owner: WorkerId,
        /// Under which term.
        term: u64,
    },
    /// Ask the owner to hand the lease over.
    RequestHandOver {
        /// Who asks.
        taker: WorkerId,
        /// The term as listed.
        term: u64,
    },
    /// Take the request back.
    WithdrawRequest {
        /// Who asked.
        taker: WorkerId,
        /// The term as listed.
        term: u64,
    },
    /// Say that the lease can't be handed over, because its handler can't be stopped.
    RefuseHandOver {
        /// Who holds it.
        owner: WorkerId,
        /// Under which term.
        term: u64,
    },
    /// Say that it can be handed over again.
    AllowHandOver {
        /// Who holds it.
        owner: WorkerId,
        /// Under which term.
        term: u64,
    },
    /// Hand the lease over to the worker that asked. The owner delivers nothing more under this
    /// term once it has sent this.
    HandOver {
        /// Who holds it.
        owner: WorkerId,
        /// Under which term.
        term: u64,
        /// Who asked.
        to: WorkerId,
    },
    /// Note up to where the shard is done.
    Checkpoint {
        /// Who holds it.
        owner: WorkerId,
        /// Under which term.
        term: u64,
        /// The checkpoint that this one replaces, so that a late write can't undo a newer one.
        replaces: Checkpoint,
        /// The new checkpoint.
        to: Checkpoint,
        /// What is announced and not yet done; `None` clears it.
        pending: Option<PendingCheckpoint>,
        /// What the owner reads, in bytes per second; `None` leaves what the row says. KCL's layout
        /// has no room for it.
        bytes_per_second: Option<u64>,
    },
    /// Note that the shard is done for good.
    End {
        /// Who holds it.
        owner: WorkerId,
        /// Under which term.
        term: u64,
        /// The checkpoint that the end replaces.
        replaces: Checkpoint,
    },
    /// Note the children of the shard, just before its end.
    NoteChildren(Vec<ShardId>),
    /// Note the keys of the shard, where an older row lacks them.
    NoteRange(HashRange),
    /// Remove the row of a shard that is done and no longer listed.
    Delete {
        /// The term as listed.
        term: u64,
    },
}

/// A change of a worker's row.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum WorkerChange {
    /// Make the row. The id is new, so there is none.
    Join {
        /// Where it runs.
        host: String,
        /// When it started by its own clock, in milliseconds since 1970.
        started_ms: u64,
        /// The streams that it reads, by name; `None` if it doesn't say.
        reads: Option<Vec<StreamName>>,
        /// For how long it may be silent before it is fenced, in milliseconds; `None` leaves that
        /// to its watchers.
        lease_time_ms: Option<u64>,
    },
    /// Move the heart.
    Beat {
        /// The counter as the worker last knew it; the new one is one more.
        counter: u64,
    },
    /// Say which streams the worker reads by now. It counts as a beat.
    SetStreams {
        /// The counter as the worker last knew it; the new one is one more.
        counter: u64,
        /// The streams, by name.
        streams: Vec<StreamName>,
    },
    /// Say that the worker is stopping, so that the others take over what it gives back. It counts
    /// as a beat.
    AnnounceLeaving {
        /// The counter as the worker last knew it; the new one is one more.
        counter: u64,
    },
    /// Shut out a worker whose heart stood still for its lease time.
    Fence {
        /// The counter as it was watched, never a newer one.
        counter: u64,
    },
    /// Say goodbye. The worker has released its leases.
    Leave {
        /// The counter as the worker last knew it.
        counter: u64,
    },
    /// Remove the row of a worker that left or was fenced, once no lease names it.
    Delete,
}

/// A change of the application's facts about a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum StreamChange {
    /// Note when the application first started on it. The first one stays.
    NoteStart {
        /// Now, by the service's clock, in milliseconds since 1970.
        t0_ms: u64,
        /// When the stream was created, in milliseconds since 1970.
        created_ms: u64,
    },
    /// Note that every row of the first sync was made.
    MarkSynced {
        /// The creation time of the stream whose rows these are.
        created_ms: u64,
    },
}

impl Write {
    /// A write to the row of a lease.
    pub fn lease(key: &LeaseKey, change: LeaseChange, nonce: Nonce) -> Self {
        Self::Lease { key: key.clone(), change, nonce }
    }

    /// A write to the row of a worker.
    pub fn worker(id: &WorkerId, change: WorkerChange, nonce: Nonce) -> Self {
        Self::Worker { id: id.clone(), change, nonce }
    }

    /// A write to the application's facts about a stream.
    pub fn stream(stream: &StreamName, change: StreamChange) -> Self {
        Self::Stream { stream: stream.clone(), change }
    }

    /// Whether the plan may change with this write, so that it moves the application's version in
    /// the same step. Beats and checkpoints don't: they are most of the writes.
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
            // Workers wait for this mark before they take anything.
            Self::Stream { change, .. } => matches!(change, StreamChange::MarkSynced { .. }),
        }
    }
}
