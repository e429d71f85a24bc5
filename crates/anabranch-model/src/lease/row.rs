//! The lease row of a shard.

use super::checkpoint::{Checkpoint, PendingCheckpoint};
use super::worker_row::WorkerId;
use super::write::{LeaseChange, Nonce, Write};
use crate::hash::HashRange;
use crate::ids::{ShardId, StreamName};
use crate::lineage::Shard;
use crate::position::Position;
use std::fmt;

/// Key of a lease row: one per stream and shard.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey {
    /// Stream name under which the row is stored.
    pub stream: StreamName,
    /// Shard of the row.
    pub shard: ShardId,
}

impl LeaseKey {
    /// Creates the key of a shard's row.
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

/// The lease row of a shard.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Lease {
    /// Key of the row.
    pub key: LeaseKey,
    /// Worker that reads the shard or is about to.
    pub owner: Option<WorkerId>,
    /// Native: incremented only by take, hand-over and release, so that it identifies one period of
    /// ownership. KCL: the counter that every write of the owner increments.
    pub term: u64,
    /// State of a hand-over. In KCL's layout only owners that support it can be asked: see
    /// [`WorkerId::supports_hand_over`].
    pub hand_over: HandOver,
    /// Position up to which the shard is processed.
    pub checkpoint: Checkpoint,
    /// A checkpoint that was prepared but not yet made.
    pub pending: Option<PendingCheckpoint>,
    /// Parents of the shard, as known when the row was created. Never changed.
    pub parents: Vec<ShardId>,
    /// Shards that it was split or merged into, recorded just before its end.
    pub children: Vec<ShardId>,
    /// Hash range of the shard. Rows of old KCL versions lack it.
    pub range: Option<HashRange>,
    /// Native: read rate of the owner in bytes per second, as last reported with a checkpoint. KCL:
    /// always absent.
    pub bytes_per_second: Option<u64>,
    /// KCL: ownership changes since the last checkpoint. Native: always 0.
    pub owner_switches: u64,
    /// Native: nonce of the last write to this row. KCL: always 0.
    pub nonce: Nonce,
}

impl Lease {
    /// Returns true if every record of the shard is processed.
    pub fn is_ended(&self) -> bool {
        self.checkpoint.is_shard_end()
    }

    /// Returns true if at least one record of the shard is processed.
    pub fn is_started(&self) -> bool {
        self.checkpoint.lanes().iter().any(|lane| *lane > Position::Latest)
    }

    /// Returns the token of the owner, if there is one.
    pub fn token(&self) -> Option<LeaseToken> {
        let owner = self.owner.clone()?;
        Some(LeaseToken { key: self.key.clone(), owner, term: self.term })
    }
}

/// State of a hand-over.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Default)]
pub enum HandOver {
    /// No hand-over is requested.
    #[default]
    None,
    /// A worker has requested the lease. The owner should drain, checkpoint and hand it over.
    Requested {
        /// Worker that requested it.
        taker: WorkerId,
    },
    /// The owner cannot stop its handler, so requests are refused.
    Refused,
}

/// Proof of ownership that the owner sends with each write: its id and the term.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct LeaseToken {
    /// Key of the lease.
    pub key: LeaseKey,
    /// Owner of the lease.
    pub owner: WorkerId,
    /// Term under which the owner holds it.
    pub term: u64,
}

impl LeaseToken {
    /// Returns true if the row still names this owner under this term.
    pub fn is_of(&self, lease: &Lease) -> bool {
        self.key == lease.key
            && lease.owner.as_ref() == Some(&self.owner)
            && lease.term == self.term
    }

    /// Renews the lease's own heartbeat (KCL's layout).
    pub fn renew(&self, nonce: Nonce) -> Write {
        self.write(nonce, |owner, term| LeaseChange::Renew { owner, term })
    }

    /// Takes the owner's lease again, so that writes sent under the old term are refused.
    pub fn retake(&self, nonce: Nonce) -> Write {
        self.write(nonce, |taker, term| LeaseChange::Take { taker, term })
    }

    /// Releases the lease.
    pub fn release(&self, nonce: Nonce) -> Write {
        self.write(nonce, |owner, term| LeaseChange::Release { owner, term })
    }

    /// Hands the lease over to the worker that requested it.
    pub fn hand_over(&self, to: &WorkerId, nonce: Nonce) -> Write {
        self.write(nonce, |owner, term| LeaseChange::HandOver { owner, term, to: to.clone() })
    }

    /// Marks the lease as not available for hand-over.
    pub fn refuse(&self, nonce: Nonce) -> Write {
        self.write(nonce, |owner, term| LeaseChange::RefuseHandOver { owner, term })
    }

    /// Marks the lease as available for hand-over again.
    pub fn allow_hand_over(&self, nonce: Nonce) -> Write {
        self.write(nonce, |owner, term| LeaseChange::AllowHandOver { owner, term })
    }

    /// Writes a checkpoint.
    pub fn checkpoint(
        &self,
        replaces: Checkpoint,
        to: Checkpoint,
        pending: Option<PendingCheckpoint>,
        nonce: Nonce,
    ) -> Write {
        self.checkpoint_at_rate(replaces, to, pending, None, nonce)
    }

    /// Writes a checkpoint and the owner's read rate, in bytes per second.
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

    /// Marks the shard as completely processed.
    pub fn end(&self, replaces: Checkpoint, nonce: Nonce) -> Write {
        self.write(nonce, |owner, term| LeaseChange::End { owner, term, replaces })
    }

    fn write(&self, nonce: Nonce, change: impl FnOnce(WorkerId, u64) -> LeaseChange) -> Write {
        Write::lease(&self.key, change(self.owner.clone(), self.term), nonce)
    }
}

/// A row to create, unless its shard has one.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct NewLease {
    /// Shard to read.
    pub shard: ShardId,
    /// Parents of the shard, including trimmed ones.
    pub parents: Vec<ShardId>,
    /// Hash range of the shard.
    pub range: HashRange,
    /// Initial checkpoint, from which reading starts.
    pub checkpoint: Position,
}

impl NewLease {
    /// Creates a row for `shard` that starts at `checkpoint`.
    pub fn new(shard: &Shard, checkpoint: Position) -> Self {
        Self {
            shard: shard.id.clone(),
            parents: shard.parents().cloned().collect(),
            range: shard.range,
            checkpoint,
        }
    }

    /// Creates a row for a child of a shard that was read. The application reads all of the child,
    /// from the trim horizon.
    pub fn child(shard: &Shard) -> Self {
        Self::new(shard, Position::TrimHorizon)
    }

    /// Returns the write that creates the row.
    pub fn create(self, stream: &StreamName, nonce: Nonce) -> Write {
        let key = LeaseKey { stream: stream.clone(), shard: self.shard.clone() };
        Write::Lease { key, change: LeaseChange::Create(Box::new(self)), nonce }
    }

    /// Returns the row as it is first stored: without an owner.
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
