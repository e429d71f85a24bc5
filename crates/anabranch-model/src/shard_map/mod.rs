//! Which shard takes a hash key: an immutable snapshot of the open shards.

mod refresh;

pub use refresh::{Invalidation, MapRead, MapRefresh};

use crate::hash::{HashKey, HashRange};
use crate::ids::ShardId;
use crate::lineage::{Inconsistency, Lineage, Shard};
use std::collections::BTreeMap;

/// How long a shard that has closed can still be asked for its range, in milliseconds. Records
/// that were on their way when it closed are judged by it.
pub const CLOSED_SHARD_KEPT_MS: u64 = 60_000;

/// What is known of a shard's range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct KnownRange {
    /// The keys that the shard takes or took.
    range: HashRange,
    /// When the range of a closed shard is forgotten. `None` while the shard is open.
    until_ms: Option<u64>,
}

/// A snapshot of a stream's shards.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardMap {
    /// The highest key of each open shard, ascending. Beside `open`, so that a search stays in
    /// few cache lines.
    endings: Vec<HashKey>,
    /// For each highest byte of a key the place in `endings` where a search may begin, and one more
    /// for the end: most searches are over before they begin.
    starts: Vec<usize>,
    /// The lowest key and the name of each open shard, in the order of `endings`.
    open: Vec<(HashKey, ShardId)>,
    /// Open shards, and closed ones for a while.
    ranges: BTreeMap<ShardId, KnownRange>,
    /// What was wrong with the list.
    problems: Vec<Inconsistency>,
}

impl ShardMap {
    /// A map of the shards of a list that was read at `now_ms`. Shards that were open in the map
    /// `before` and are not any more stay known for [`CLOSED_SHARD_KEPT_MS`].
    ///
    /// A list with gaps or overlaps is taken as it is and its [`ShardMap::problems`] are named:
    /// keys without a certain shard are not predicted.
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
            // The list wins: a stream made anew gives the same names to other ranges.
            ranges: kept.chain(listed).collect(),
            problems: list.inconsistencies(),
        }
    }

    /// The ranges that a map made at `now_ms` takes over: all are closed, unless it lists them.
    fn kept_at(&self, now_ms: u64) -> impl Iterator<Item = (ShardId, KnownRange)> {
        self.ranges.iter().filter_map(move |(id, known)| {
            let until_ms = known.until_ms.unwrap_or(now_ms.saturating_add(CLOSED_SHARD_KEPT_MS));
            let known = KnownRange { range: known.range, until_ms: Some(until_ms) };
            (now_ms < until_ms).then(|| (id.clone(), known))
        })
    }

    /// The open shard that takes a key. `None` where the list had a gap.
    pub fn predict(&self, key: HashKey) -> Option<&ShardId> {
        self.open.get(self.predict_place(key)?).map(|(_, id)| id)
    }

    /// The place among the open shards of the one that takes a key.
    #[inline]
    pub fn predict_place(&self, key: HashKey) -> Option<usize> {
        let byte = usize::from(key.0.to_be_bytes()[0]);
        let (from, to) = (*self.starts.get(byte)?, *self.starts.get(byte + 1)?);
        let at = from + self.endings.get(from..to)?.partition_point(|ending| *ending < key);
        let (start, _) = self.open.get(at)?;
        (*start <= key).then_some(at)
    }

    /// The open shard at a place, in the order of the hash keys.
    pub fn open_shard(&self, place: usize) -> Option<(HashRange, &ShardId)> {
        let (start, id) = self.open.get(place)?;
        Some((HashRange::new(*start, *self.endings.get(place)?)?, id))
    }

    /// The range of a shard that is open or has not been closed for long.
    pub fn range_of(&self, id: &ShardId, now_ms: u64) -> Option<HashRange> {
        let known = self.ranges.get(id)?;
        known.until_ms.is_none_or(|until_ms| now_ms < until_ms).then_some(known.range)
    }

    /// Whether the map knows the shard as open.
    pub fn is_open(&self, id: &ShardId) -> bool {
        self.ranges.get(id).is_some_and(|known| known.until_ms.is_none())
    }

    /// The number of open shards.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// What was wrong with the list that the map was made from.
    pub fn problems(&self) -> &[Inconsistency] {
        &self.problems
    }
}

/// For each highest byte the number of endings below every key with it, and at last of all.
fn starts(endings: &[HashKey]) -> Vec<usize> {
    let below = |byte: u128| endings.partition_point(|ending| ending.0 >> 120 < byte);
    (0..=256).map(below).collect()
}

#[cfg(test)]
mod tests;
