//! Listing of a stream's rows, including those that cannot be read.

use super::row::{Lease, NewLease};
use crate::hash::HashRange;
use crate::ids::{ShardId, StreamName};
use crate::lineage::Lineage;
use crate::position::Position;

/// A row that exists and cannot be read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct UnreadableRow<K> {
    /// Key of the row.
    pub key: K,
    /// Reason why it cannot be read.
    pub why: String,
}

/// Result of one listing of a stream's rows. A shard in neither part had no row when the listing
/// passed its position.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeaseListing {
    /// Readable rows, by shard.
    pub rows: Vec<Lease>,
    /// Rows that exist and cannot be read.
    pub unreadable: Vec<UnreadableRow<ShardId>>,
}

impl From<Vec<Lease>> for LeaseListing {
    fn from(rows: Vec<Lease>) -> Self {
        Self { rows, unreadable: Vec::new() }
    }
}

impl LeaseListing {
    /// Applies `change` to each readable row.
    #[must_use]
    pub fn map(mut self, change: impl FnMut(Lease) -> Lease) -> Self {
        self.rows = self.rows.into_iter().map(change).collect();
        self
    }

    /// Returns the rows by shard, with a substitute at the trim horizon for each unreadable row.
    /// Such a row covers the keys of its shard, and it may be unfinished. `list` contains the
    /// shards of the stream. A key that is neither a listed shard nor one that may have been listed
    /// before covers no keys.
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
