//! What one look at the lease store shows, in the planner's own words.

use std::fmt;
use std::sync::Arc;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as the store has it.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                Self(name.into())
            }
        }

        impl From<String> for $name {
            fn from(name: String) -> Self {
                Self(name.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// The name of a worker, new at every join. Cheap to clone.
    WorkerId
}

name! {
    /// The name of a lease: a shard id, with the stream's name before it where an application
    /// reads several. Cheap to clone.
    LeaseKey
}

/// One look at the store: every worker row and every lease row.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// The worker rows. KCL's layout has none.
    pub workers: Vec<WorkerSeen>,
    /// The lease rows.
    pub leases: Vec<LeaseSeen>,
}

/// A worker row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerSeen {
    /// The worker.
    pub id: WorkerId,
    /// The counter that its beats move.
    pub counter: u64,
    /// What the row says about it.
    pub standing: Standing,
}

/// What a worker's row says about the worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It takes part.
    Active,
    /// It is stopping: it takes nothing more and gives back what it has.
    Leaving,
    /// Another worker fenced it: it has stopped, and what it owned is free.
    Fenced,
}

/// What the planner needs of a lease row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseSeen {
    /// The lease.
    pub key: LeaseKey,
    /// Who owns it.
    pub owner: Option<WorkerId>,
    /// The lease's term; in KCL's layout its `leaseCounter`, which is also its heart.
    pub counter: u64,
    /// How far its shard is.
    pub phase: Phase,
    /// The worker that asked the owner to hand it over.
    pub named: Option<WorkerId>,
    /// The owner can't hand it over for now, because its handler can't be cancelled.
    pub refused: bool,
    /// What its shard carries, if somebody measured it.
    pub bytes_per_second: Option<u64>,
}

/// How far the shard of a lease is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// It may be read.
    Ready,
    /// A parent has not ended.
    Blocked,
    /// Every record of it is done.
    Finished,
}
