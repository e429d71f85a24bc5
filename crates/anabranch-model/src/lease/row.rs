//! The row that an application keeps for a shard.

use super::checkpoint::{Checkpoint, PendingCheckpoint};
use super::worker_row::WorkerId;
use super::write::{LeaseChange, Nonce, Write};
use crate::hash::HashRange;
use crate::ids::{ShardId, StreamName};
use crate::lineage::Shard;
use crate::position::Position;
use std::fmt;

/// Which row: one per shard and stream.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey {
    /// The stream.
    pub stream: StreamName,
    /// The shard that the row is for.
    pub shard: ShardId,
}

impl LeaseKey {
    /// The key of a shard's row.
    pub fn new(stream: impl Into<StreamName>, shard: impl Into<ShardId>) -> Self {
        Self { stream: stream.into(), shard: shard.into() }
    }
}

impl fmt::Display for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.stream, self.shard)
    }
}

impl fmt::Debug for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What is stored for one shard.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Lease {
    /// Which row.
    pub key: LeaseKey,
    /// The worker that reads the shard, or that is about to.
    pub owner: Option<WorkerId>,
    /// Native: moved by take, pass and release, and by nothing else, so that it names one time of
    /// ownership. KCL: the counter that every write of the owner moves.
    pub term: u64,
    /// Whether another worker has asked for the lease. In KCL's layout only a worker of this library
    /// can be asked: see [`WorkerId::supports_hand_over`].
    pub hand_over: HandOver,
    /// Up to where the shard is done.
    pub checkpoint: Checkpoint,
    /// A checkpoint that was announced and not yet made.
    pub pending: Option<PendingCheckpoint>,
    /// The shards that it came from, as known when the row was made. Never changed.
    pub parents: Vec<ShardId>,
    /// The shards that it was split or merged into, noted just before its end.
    pub children: Vec<ShardId>,
    /// The keys that the shard takes. Rows of old KCL versions lack it.
    pub range: Option<HashRange>,
    /// Native: what its owner read of it, in bytes per second, as last said with a checkpoint. KCL:
    /// always absent.
    pub bytes_per_second: Option<u64>,
    /// KCL: how often the lease changed hands since its last checkpoint. Native: always 0.
    pub owner_switches: u64,
    /// Native: the nonce of the last write to this row. KCL: always 0.
    pub nonce: Nonce,
}

impl Lease {
    /// Whether every record of the shard is done.
    pub fn is_ended(&self) -> bool {
        self.checkpoint.is_shard_end()
    }

    /// Whether a record of the shard is done, or all are: the shard has been started.
    pub fn is_started(&self) -> bool {
        self.checkpoint.lanes().iter().any(|lane| *lane > Position::Latest)
    }

    /// What the owner has to present, if there is one.
    pub fn token(&self) -> Option<LeaseToken> {
        let owner = self.owner.clone()?;
        Some(LeaseToken { key: self.key.clone(), owner, term: self.term })
    }
}

/// Whether another worker has asked for a lease.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Default)]
pub enum HandOver {
    /// Nobody has.
    #[default]
    None,
    /// This worker has; the owner is to drain, checkpoint and pass.
    Requested {
        /// Who asked.
        taker: WorkerId,
    },
    /// The owner can't stop its handler, so nobody may ask.
    Refused,
}

/// What the owner of a lease presents with each write: who it is, and under which term.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct LeaseToken {
    /// Which lease.
    pub key: LeaseKey,
    /// Who holds it.
    pub owner: WorkerId,
    /// Under which term.
    pub term: u64,
}

impl LeaseToken {
    /// Whether the row still names this owner under this term.
    pub fn is_of(&self, lease: &Lease) -> bool {
        self.key == lease.key
            && lease.owner.as_ref() == Some(&self.owner)
            && lease.term == self.term
    }

    /// Moves the lease's own heart (KCL's layout).
    pub fn renew(&self, nonce: Nonce) -> Write {
        self.write(nonce, |owner, term| LeaseChange::Renew { owner, term })
    }

    /// Takes the own lease again, so that whatever was sent under the old term comes too late.
    pub fn retake(&self, nonce: Nonce) -> Write {
        self.write(nonce, |taker, term| LeaseChange::Take { taker, term })
    }

    /// Gives the lease up.
    pub fn release(&self, nonce: Nonce) -> Write {
        self.write(nonce, |owner, term| LeaseChange::Release { owner, term })
    }

    /// Hands the lease over to the worker that asked.
    pub fn hand_over(&self, to: &WorkerId, nonce: Nonce) -> Write {
        self.write(nonce, |owner, term| LeaseChange::HandOver { owner, term, to: to.clone() })
    }

    /// Says that the lease can't be handed over.
    pub fn refuse(&self, nonce: Nonce) -> Write {
        self.write(nonce, |owner, term| LeaseChange::RefuseHandOver { owner, term })
    }

    /// Says that the lease can be handed over again.
    pub fn allow_hand_over(&self, nonce: Nonce) -> Write {
        self.write(nonce, |owner, term| LeaseChange::AllowHandOver { owner, term })
    }

    /// Notes up to where the shard is done.
    pub fn checkpoint(
        &self,
        replaces: Checkpoint,
        to: Checkpoint,
        pending: Option<PendingCheckpoint>,
        nonce: Nonce,
    ) -> Write {
        self.checkpoint_at_rate(replaces, to, pending, None, nonce)
    }

    /// The same, and beside it what the owner reads, in bytes per second.
    pub fn checkpoint_at_rate(
        &self,
        replaces: Checkpoint,
        to: Checkpoint,
        pending: Option<PendingCheckpoint>,
        bytes_per_second: Option<u64>,
        nonce: Nonce,
    ) -> Write {
        self.write(nonce, |owner, term| LeaseChange::Checkpoint {
            owner,
            term,
            replaces,
            to,
            pending,
            bytes_per_second,
        })
    }

    /// Notes that the shard is done for good.
    pub fn end(&self, replaces: Checkpoint, nonce: Nonce) -> Write {
        self.write(nonce, |owner, term| LeaseChange::End { owner, term, replaces })
    }

    fn write(&self, nonce: Nonce, change: impl FnOnce(WorkerId, u64) -> LeaseChange) -> Write {
        Write::lease(&self.key, change(self.owner.clone(), self.term), nonce)
    }
}

/// A row to be made, unless there is one for its shard.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct NewLease {
    /// The shard to read.
    pub shard: ShardId,
    /// The shards that it came from, trimmed ones included.
    pub parents: Vec<ShardId>,
    /// The keys that the shard takes.
    pub range: HashRange,
    /// Where to start reading.
    pub checkpoint: Position,
}

impl NewLease {
    /// A row for `shard` that starts at `checkpoint`.
    pub fn new(shard: &Shard, checkpoint: Position) -> Self {
        Self {
            shard: shard.id.clone(),
            parents: shard.parents().cloned().collect(),
            range: shard.range,
            checkpoint,
        }
    }

    /// A row for a child of a shard that was read: all of the child is new to the application.
    pub fn child(shard: &Shard) -> Self {
        Self::new(shard, Position::TrimHorizon)
    }

    /// The write that makes the row.
    pub fn create(self, stream: &StreamName, nonce: Nonce) -> Write {
        let key = LeaseKey { stream: stream.clone(), shard: self.shard.clone() };
        Write::Lease { key, change: LeaseChange::Create(Box::new(self)), nonce }
    }

    /// The row as it is first stored: without an owner.
    pub fn into_lease(self, stream: &StreamName) -> Lease {
        Lease {
            key: LeaseKey { stream: stream.clone(), shard: self.shard },
            owner: None,
            term: 0,
            hand_over: HandOver::None,
            checkpoint: self.checkpoint.into(),
            pending: None,
            parents: self.parents,
            children: Vec::new(),
            range: Some(self.range),
            bytes_per_second: None,
            owner_switches: 0,
            nonce: Nonce::default(),
        }
    }
}
