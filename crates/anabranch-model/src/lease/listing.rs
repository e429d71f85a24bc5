//! All rows of a stream, and the names of those that can't be read.

use super::row::{Lease, NewLease};
use crate::hash::HashRange;
use crate::ids::{ShardId, StreamName};
use crate::lineage::Lineage;
use crate::position::Position;

/// A row that is there and can't be read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct UnreadableRow<K> {
    /// Which row.
    pub key: K,
    /// What is wrong with it.
    pub why: String,
}

/// What one list of a stream's rows showed. A shard that neither part names had no row when the
/// list passed its place.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeaseListing {
    /// The rows, by shard.
    pub rows: Vec<Lease>,
    /// Rows that are there and can't be read.
    pub unreadable: Vec<UnreadableRow<ShardId>>,
}

impl From<Vec<Lease>> for LeaseListing {
    fn from(rows: Vec<Lease>) -> Self {
        Self { rows, unreadable: Vec::new() }
    }
}

impl LeaseListing {
    /// Changes each row.
    #[must_use]
    pub fn map(mut self, change: impl FnMut(Lease) -> Lease) -> Self {
        self.rows = self.rows.into_iter().map(change).collect();
        self
    }

    /// Returns the rows by shard, and beside them one at the trim horizon for each that can't be
    /// read: such a row takes the keys of its shard, and it may be unfinished. `list` holds the
    /// shards of the stream. A key that names neither a listed shard nor one that may have been
    /// listed before takes no keys.
    pub fn with_unreadable(&self, stream: &StreamName, list: &Lineage) -> Vec<Lease> {
        let mut rows = self.rows.clone();
        for UnreadableRow { key, .. } in &self.unreadable {
            if let Some(shard) = list.get(key) {
                rows.push(NewLease::new(shard, Position::TrimHorizon).into_lease(stream));
            } else if key.index().is_some() {
                let unlisted = NewLease {
                    shard: key.clone(),
                    parents: Vec::new(),
                    range: HashRange::ALL,
                    checkpoint: Position::TrimHorizon,
                };
                rows.push(Lease { range: None, ..unlisted.into_lease(stream) });
            }
        }
        rows.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        rows
    }
}
