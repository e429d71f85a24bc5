//! The row that an application keeps for a shard.

use crate::hash::HashRange;
use crate::ids::ShardId;
use crate::lineage::Shard;
use crate::position::Position;

/// What is stored for one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The shard that the row is for.
    pub shard: ShardId,
    /// The shards that it came from, as known when the row was made. Never changed.
    pub parents: Vec<ShardId>,
    /// The shards that it was split or merged into, noted just before its end.
    pub children: Vec<ShardId>,
    /// The keys that the shard takes. Rows of old KCL versions lack it.
    pub range: Option<HashRange>,
    /// Up to where the shard is done.
    pub checkpoint: Position,
}

impl Row {
    /// Whether every record of the shard is done.
    pub fn is_ended(&self) -> bool {
        self.checkpoint.is_shard_end()
    }

    /// Whether a record of the shard is done, or all are: the shard has been started.
    pub fn has_moved(&self) -> bool {
        self.checkpoint > Position::Latest
    }
}

/// A row to be made, unless there is one for its shard.
#[derive(Clone, PartialEq, Eq, Debug)]
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
}

impl From<NewLease> for Row {
    fn from(new: NewLease) -> Self {
        Self {
            shard: new.shard,
            parents: new.parents,
            children: Vec::new(),
            range: Some(new.range),
            checkpoint: new.checkpoint,
        }
    }
}
