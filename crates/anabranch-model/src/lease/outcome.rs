//! How a write ended.

use super::application::StreamFacts;
use super::row::{Lease, LeaseToken};
use super::worker_row::WorkerRow;

/// How a write ended.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum WriteOutcome {
    /// It was applied. Here is the row after it.
    Done(StoredRow),
    /// Its condition was false, so nothing changed.
    Refused {
        /// Which part of the condition was false.
        why: WriteRefusal,
        /// The row as it stands, if the store told.
        now: Option<StoredRow>,
    },
    /// The reply was lost: it may have been applied, or may still be.
    /// [`resolve`](super::resolve::resolve) decides from what is read back.
    Unknown,
}

/// A row as it stands in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoredRow {
    /// There is none.
    Absent,
    /// A lease.
    Lease(Box<Lease>),
    /// A worker.
    Worker(WorkerRow),
    /// The application's facts about a stream.
    Stream(StreamFacts),
}

/// Which part of a write's condition was false.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
pub enum WriteRefusal {
    /// There is no such row.
    #[error("there is no such row")]
    Missing,
    /// There is such a row already.
    #[error("there is such a row already")]
    Exists,
    /// The lease has changed hands since.
    #[error("the lease has changed hands since (its term moved)")]
    TermMoved,
    /// Another worker owns the lease, or none does.
    #[error("the lease belongs to another worker, or to none")]
    NotOwner,
    /// The owner can't hand the lease over.
    #[error("its owner can't hand the lease over now")]
    HandOverRefused,
    /// Another worker has asked for the lease.
    #[error("another worker has asked for the lease")]
    RequestedByOther,
    /// That worker has not asked for the lease.
    #[error("that worker has not asked for the lease")]
    NotRequested,
    /// The lease has no owner to ask, or it is the asker's own.
    #[error("there is no other worker to ask for the lease")]
    NoOwner,
    /// The checkpoint is not the one to be replaced.
    #[error("the checkpoint is not the one that this one replaces")]
    CheckpointMoved,
    /// The new checkpoint lies before the old one.
    #[error("the new checkpoint lies before the one that it replaces")]
    CheckpointBehind,
    /// The shard is not done.
    #[error("the shard is not done")]
    NotEnded,
    /// The worker was shut out, or it left.
    #[error("the worker was fenced, or it left")]
    Fenced,
    /// The worker's heart has moved since.
    #[error("the worker's heart has moved since")]
    CounterMoved,
    /// The worker has neither left nor been fenced.
    #[error("the worker has neither left nor been fenced")]
    StillAlive,
    /// A lease names the worker.
    #[error("a lease still names the worker")]
    StillReferenced,
    /// The stream was created at another time: it is another stream under the same name.
    #[error("the stream was created at another time")]
    OtherStream,
    /// The layout has no such write.
    #[error("this table layout has no such write")]
    Unsupported,
}

impl StoredRow {
    /// What a read of a lease's row showed.
    pub fn of_lease(row: Option<&Lease>) -> Self {
        row.map_or(Self::Absent, |lease| Self::Lease(Box::new(lease.clone())))
    }

    /// What a read of a worker's row showed.
    pub fn of_worker(row: Option<&WorkerRow>) -> Self {
        row.map_or(Self::Absent, |worker| Self::Worker(worker.clone()))
    }

    /// What a read of the application's facts showed about a stream.
    pub fn of_stream(facts: Option<&StreamFacts>) -> Self {
        facts.map_or(Self::Absent, |facts| Self::Stream(*facts))
    }
}

impl WriteOutcome {
    /// The lease after a write that was applied.
    pub fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Done(StoredRow::Lease(lease)) => Some(lease),
            _ => None,
        }
    }

    /// What the owner has to present from now on, after a write that was applied.
    pub fn token(&self) -> Option<LeaseToken> {
        self.lease().and_then(Lease::token)
    }

    /// Whether the write was applied.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }

    /// Why the write was refused, if it was.
    pub fn refusal(&self) -> Option<WriteRefusal> {
        match self {
            Self::Refused { why, .. } => Some(*why),
            _ => None,
        }
    }
}
