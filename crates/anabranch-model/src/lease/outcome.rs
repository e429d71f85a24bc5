//! Results of conditional writes.

use super::application::StreamFacts;
use super::row::{Lease, LeaseToken};
use super::worker_row::WorkerRow;

/// Result of a conditional write.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum WriteOutcome {
    /// The write was applied; this is the row after it.
    Done(StoredRow),
    /// The condition was false, so nothing changed.
    Refused {
        /// Part of the condition that was false.
        why: WriteRefusal,
        /// Current row, if the store returned it.
        now: Option<StoredRow>,
    },
    /// The reply was lost: the write may have been applied, or may still be.
    /// [`resolve`](super::resolve::resolve) decides from a read of the row.
    Unknown,
}

/// State of a row in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoredRow {
    /// There is no row.
    Absent,
    /// A lease.
    Lease(Box<Lease>),
    /// A worker.
    Worker(WorkerRow),
    /// The application's facts about a stream.
    Stream(StreamFacts),
}

/// Part of a write's condition that was false.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
pub enum WriteRefusal {
    /// The row does not exist.
    #[error("the row does not exist")]
    Missing,
    /// The row exists already.
    #[error("the row exists already")]
    Exists,
    /// The lease has changed hands since: its term has changed.
    #[error("the lease has changed owner (its term has changed)")]
    TermMoved,
    /// Another worker owns the lease, or none does.
    #[error("another worker owns the lease, or none does")]
    NotOwner,
    /// The owner cannot hand the lease over.
    #[error("the owner cannot hand the lease over now")]
    HandOverRefused,
    /// Another worker has requested the lease.
    #[error("another worker has requested the lease")]
    RequestedByOther,
    /// That worker has not requested the lease.
    #[error("that worker has not requested the lease")]
    NotRequested,
    /// The lease has no owner to ask, or it is the requester's own.
    #[error("the lease has no other owner to request it from")]
    NoOwner,
    /// The checkpoint is not the one to be replaced.
    #[error("the current checkpoint is not the one to be replaced")]
    CheckpointMoved,
    /// The new checkpoint is before the old one.
    #[error("the new checkpoint is before the current one")]
    CheckpointBehind,
    /// The shard is not finished.
    #[error("the shard is not finished")]
    NotEnded,
    /// The worker was fenced, or it left.
    #[error("the worker was fenced or has left")]
    Fenced,
    /// The worker's heartbeat has changed since.
    #[error("the worker has sent a heartbeat since")]
    CounterMoved,
    /// The worker has neither left nor been fenced.
    #[error("the worker has neither left nor been fenced")]
    StillAlive,
    /// The worker still owns a lease.
    #[error("the worker still owns a lease")]
    StillReferenced,
    /// The stream was created at another time: it is another stream of the same name.
    #[error("the stream was recreated: its creation time is different")]
    OtherStream,
    /// The layout has no such write.
    #[error("the table layout does not support this write")]
    Unsupported,
}

impl StoredRow {
    /// Returns the state of a lease's row after a read.
    pub fn of_lease(row: Option<&Lease>) -> Self {
        row.map_or(Self::Absent, |lease| Self::Lease(Box::new(lease.clone())))
    }

    /// Returns the state of a worker's row after a read.
    pub fn of_worker(row: Option<&WorkerRow>) -> Self {
        row.map_or(Self::Absent, |worker| Self::Worker(worker.clone()))
    }

    /// Returns the state of a stream's facts after a read.
    pub fn of_stream(facts: Option<&StreamFacts>) -> Self {
        facts.map_or(Self::Absent, |facts| Self::Stream(*facts))
    }
}

impl WriteOutcome {
    /// Returns the lease after a write that was applied.
    pub fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Done(StoredRow::Lease(lease)) => Some(lease),
            _ => None,
        }
    }

    /// Returns the owner's new token after a write that was applied.
    pub fn token(&self) -> Option<LeaseToken> {
        self.lease().and_then(Lease::token)
    }

    /// Returns true if the write was applied.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }

    /// Returns the reason for a refusal, if the write was refused.
    pub fn refusal(&self) -> Option<WriteRefusal> {
        match self {
            Self::Refused { why, .. } => Some(*why),
            _ => None,
        }
    }
}
