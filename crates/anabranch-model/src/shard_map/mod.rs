//! Shard map: an immutable snapshot of the open shards, by hash key.

mod refresh;

pub use refresh::{Invalidation, MapRead, MapRefresh};

use crate::hash::{HashKey, HashRange};
use crate::ids::ShardId;
use crate::lineage::{Inconsistency, Lineage, Shard};
use std::collections::BTreeMap;

/// Time in milliseconds for which the range of a closed shard remains available. Records that were
/// in flight when it closed are verified by it.
pub const CLOSED_SHARD_KEPT_MS: u64 = 60_000;

/// Known range of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct KnownRange {
    /// Hash range of the shard.
    range: HashRange,
    /// Expiry of a closed shard's range. `None` while the shard is open.
    until_ms: Option<u64>,
}

/// A snapshot of a stream's shards.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardMap {
    /// Highest key of each open shard, ascending. Separate from `open`, so that a search touches
    /// few cache lines.
    endings: Vec<HashKey>,
    /// Index into `endings` at which a search begins, for each highest byte of a key, and one more
    /// for the end. It leaves little or nothing to search in most cases.
    starts: Vec<usize>,
    /// Lowest key and id of each open shard, in the order of `endings`.
    open: Vec<(HashKey, ShardId)>,
    /// Ranges of open shards, and of closed ones for a while.
    ranges: BTreeMap<ShardId, KnownRange>,
    /// Inconsistencies of the list.
    problems: Vec<Inconsistency>,
}

impl ShardMap {
    /// Creates a map from a list that was read at `now_ms`. Shards that were open in the map
    /// `before` and no longer are remain known for [`CLOSED_SHARD_KEPT_MS`].
    ///
    /// A list with holes or overlaps is used as it is, and its inconsistencies are available from
    /// [`ShardMap::problems`]. Keys without a known shard are not predicted.
    pub fn new(
        shards: impl IntoIterator<Item = Shard>,
        now_ms: u64,
        before: Option<&Self>,
    ) -> Self {
        let list = Lineage::new(shards);
        let mut open: Vec<_> = list.open_shards().collect();
        open.sort_unstable_by_key(|shard| (shard.range.end(), shard.range.start(), &shard.id));
        let kept = before.into_iter().flat_map(|map| map.kept_at(now_ms));
        let listed = list.shards().map(|shard| {
            let until_ms = (!shard.is_open()).then(|| now_ms.saturating_add(CLOSED_SHARD_KEPT_MS));
            (shard.id.clone(), KnownRange { range: shard.range, until_ms })
        });
        let endings: Vec<HashKey> = open.iter().map(|shard| shard.range.end()).collect();
        Self {
            starts: starts(&endings),
            endings,
            open: open.iter().map(|shard| (shard.range.start(), shard.id.clone())).collect(),
            // The list takes precedence: a recreated stream reuses the ids for other ranges.
            ranges: kept.chain(listed).collect(),
            problems: list.inconsistencies(),
        }
    }

    /// Returns the ranges that a map created at `now_ms` takes over: all as closed, unless it lists
    /// them.
    fn kept_at(&self, now_ms: u64) -> impl Iterator<Item = (ShardId, KnownRange)> {
        self.ranges.iter().filter_map(move |(id, known)| {
            let until_ms = known.until_ms.unwrap_or(now_ms.saturating_add(CLOSED_SHARD_KEPT_MS));
            let known = KnownRange { range: known.range, until_ms: Some(until_ms) };
            (now_ms < until_ms).then(|| (id.clone(), known))
        })
    }

    /// Returns the open shard that takes a key, or `None` if the list had a hole there.
    pub fn predict(&self, key: HashKey) -> Option<&ShardId> {
        self.open.get(self.predict_place(key)?).map(|(_, id)| id)
    }

    /// Returns the index among the open shards of the one that takes a key.
    #[inline]
    pub fn predict_place(&self, key: HashKey) -> Option<usize> {
        let byte = usize::from(key.0.to_be_bytes()[0]);
        let (from, to) = (*self.starts.get(byte)?, *self.starts.get(byte + 1)?);
        let at = from + self.endings.get(from..to)?.partition_point(|ending| *ending < key);
        let (start, _) = self.open.get(at)?;
        (*start <= key).then_some(at)
    }

    /// Returns the open shard at an index, in hash key order.
    pub fn open_shard(&self, place: usize) -> Option<(HashRange, &ShardId)> {
        let (start, id) = self.open.get(place)?;
        Some((HashRange::new(*start, *self.endings.get(place)?)?, id))
    }

    /// Returns the range of a shard that is open or was closed recently.
    pub fn range_of(&self, id: &ShardId, now_ms: u64) -> Option<HashRange> {
        let known = self.ranges.get(id)?;
        known.until_ms.is_none_or(|until_ms| now_ms < until_ms).then_some(known.range)
    }

    /// Returns true if the map lists the shard as open.
    pub fn is_open(&self, id: &ShardId) -> bool {
        self.ranges.get(id).is_some_and(|known| known.until_ms.is_none())
    }

    /// Returns the number of open shards.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Returns the inconsistencies of the list from which the map was created.
    pub fn problems(&self) -> &[Inconsistency] {
        &self.problems
    }
}

/// Returns, for each highest byte, the number of endings below every key with it, and finally the
/// number of all.
fn starts(endings: &[HashKey]) -> Vec<usize> {
    let below = |byte: u128| endings.partition_point(|ending| ending.0 >> 120 < byte);
    (0..=256).map(below).collect()
}

#[cfg(test)]
mod tests;
