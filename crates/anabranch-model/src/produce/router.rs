//! Routing of records by the current shard map, and the shards whose range is not trusted.

use super::seal::SealedRecord;
use super::settings::Aggregation;
use super::shard_queue::QueueScope;
use crate::hash::{HashKey, HashRange};
use crate::ids::ShardId;
use crate::shard_map::{MapRefresh, ShardMap};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Time for which a shard with an unverifiable range takes only records of one hash each.
const DISTRUST_MS: u64 = 30_000;

/// Divisor of `map_idle_ms`. A stream cannot be deleted and recreated within the resulting time.
const DOUBTS: u64 = 8;

/// Returns the time without an answer after which the stream may be another one.
pub(super) fn silence_limit_ms(idle_ms: u64) -> u64 {
    idle_ms / DOUBTS
}

/// Routes records by the current map.
#[derive(Debug)]
pub(super) struct Router {
    /// Records that may share one Kinesis record.
    aggregation: Aggregation,
    /// The map and its refresh.
    pub(super) refresh: MapRefresh,
    /// Shards whose range in the map may be wrong, with the time until which nothing is aggregated
    /// across hashes for them.
    distrusted: BTreeMap<ShardId, u64>,
    /// Number of times a map was dropped. A shard of an earlier era may share its name with another
    /// shard.
    pub(super) era: u64,
    /// Last evidence that the map belongs to the stream.
    pub(super) seen_ms: u64,
    /// Time up to which the stream is known to be the one in the map. It is the time at which the
    /// newest list was requested or the newest answered request was sent, each soon after the one
    /// before. A stream that is deleted and recreated answers nothing for some time.
    pub(super) proved_ms: u64,
}

impl Router {
    pub(super) fn new(aggregation: Aggregation, now_ms: u64) -> Self {
        Self {
            aggregation,
            refresh: MapRefresh::default(),
            distrusted: BTreeMap::new(),
            era: 0,
            seen_ms: now_ms,
            proved_ms: now_ms,
        }
    }

    /// Returns true if the stream may be another one than that of the map, because it has not
    /// answered for too long.
    pub(super) fn in_doubt(&self, idle_ms: u64, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.proved_ms) > silence_limit_ms(idle_ms)
    }

    #[inline]
    pub(super) fn map(&self) -> Option<&Arc<ShardMap>> {
        self.refresh.map()
    }

    /// Returns true if, by the current map, the shard's range holds every user record of `frozen`.
    /// The prediction of `frozen` may be from an older map of another stream with a shard of that
    /// name.
    pub(super) fn holds<T>(&self, shard: &ShardId, frozen: &SealedRecord<T>, now_ms: u64) -> bool {
        let range = self.map().and_then(|map| map.range_of(shard, now_ms));
        range.is_some_and(|range| frozen.fits_range(range))
    }

    /// Returns the index, among the map's open shards, of the shard that takes a hash.
    #[inline]
    pub(super) fn shard_at(&self, hash: HashKey) -> Option<usize> {
        self.map()?.predict_place(hash)
    }

    /// Returns the index of the shard whose queue takes a hash, or `None` if the hash has a queue
    /// of its own.
    #[inline]
    pub(super) fn shard_lane(&self, hash: HashKey) -> Option<usize> {
        if self.aggregation != Aggregation::ByShard {
            return None;
        }
        let at = self.shard_at(hash)?;
        let trusted = self.distrusted.is_empty() || {
            let (_, id) = self.map()?.open_shard(at)?;
            !self.distrusted.contains_key(id)
        };
        trusted.then_some(at)
    }

    /// Returns true if a queue still matches the current map.
    pub(super) fn keeps(&self, place: &QueueScope) -> bool {
        match place {
            QueueScope::Hash(hash) => self.shard_lane(*hash).is_none(),
            QueueScope::Shard(id, range) => self.map().is_some_and(|map| {
                let same = map.predict_place(range.end()).and_then(|at| map.open_shard(at));
                same == Some((*range, id)) && !self.distrusted.contains_key(id)
            }),
        }
    }

    /// Stops aggregation across hashes for every shard that overlaps `hull`.
    pub(super) fn distrust(&mut self, hull: HashRange, now_ms: u64) {
        let Some(map) = self.map().cloned() else { return };
        for at in 0..map.open_count() {
            if let Some((range, id)) = map.open_shard(at)
                && range.overlaps(&hull)
            {
                self.distrusted.insert(id.clone(), now_ms.saturating_add(DISTRUST_MS));
            }
        }
    }

    /// Returns when the next distrust ends.
    pub(super) fn trust_again_ms(&self) -> Option<u64> {
        self.distrusted.values().min().copied()
    }

    /// Ends distrust that has lasted long enough. Returns true if any ended.
    pub(super) fn trust_again(&mut self, now_ms: u64) -> bool {
        let before = self.distrusted.len();
        self.distrusted.retain(|_, until_ms| now_ms < *until_ms);
        self.distrusted.len() < before
    }

    /// Drops the map: the stream may be another one of the same name.
    pub(super) fn discard(&mut self) {
        self.refresh.discard();
        self.distrusted.clear();
        self.era += 1;
    }
}
