//! Where a record goes by what is known of the shards, and which shards are not trusted.

use super::seal::SealedRecord;
use super::settings::Aggregation;
use super::shard_queue::QueueScope;
use crate::hash::{HashKey, HashRange};
use crate::ids::ShardId;
use crate::shard_map::{MapRefresh, ShardMap};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How long a shard whose range could not be learnt takes records of one hash only.
const DISTRUST_MS: u64 = 30_000;

/// In this part of the time without a sign of the stream after which the map is dropped, no stream
/// is deleted and made anew.
const DOUBTS: u64 = 8;

/// How long nothing has to be heard of the stream until it may be another one.
pub(super) fn silence_limit_ms(idle_ms: u64) -> u64 {
    idle_ms / DOUBTS
}

/// Routes records by the current map.
#[derive(Debug)]
pub(super) struct Router {
    /// What goes into one record of the stream.
    aggregation: Aggregation,
    /// The map and its refresh.
    pub(super) refresh: MapRefresh,
    /// Shards that the map may be wrong about, and until when nothing is aggregated for them.
    distrusted: BTreeMap<ShardId, u64>,
    /// How often a map was dropped. A shard of an older life may have the name of another one.
    pub(super) era: u64,
    /// When the stream last gave a sign that the map is of it.
    pub(super) seen_ms: u64,
    /// Up to when it is known that the stream is the one of the map: the newest list was asked for
    /// then, or the newest request was sent that the stream answered, each soon after the one
    /// before. A stream that is deleted and made anew answers nothing for some time.
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

    /// Whether the stream may be another one than that of the map, because it answered nothing for
    /// so long.
    pub(super) fn in_doubt(&self, idle_ms: u64, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.proved_ms) > silence_limit_ms(idle_ms)
    }

    /// The current map.
    #[inline]
    pub(super) fn map(&self) -> Option<&Arc<ShardMap>> {
        self.refresh.map()
    }

    /// Whether the map knows that a shard takes every record of a container. Its prediction may be
    /// of an older map, of another stream with a shard of that name.
    pub(super) fn holds<T>(&self, shard: &ShardId, frozen: &SealedRecord<T>, now_ms: u64) -> bool {
        let range = self.map().and_then(|map| map.range_of(shard, now_ms));
        range.is_some_and(|range| frozen.fits_range(range))
    }

    /// The place among the map's open shards of the one that takes a hash.
    #[inline]
    pub(super) fn shard_at(&self, hash: HashKey) -> Option<usize> {
        self.map()?.predict_place(hash)
    }

    /// The lane that a hash belongs to: its shard's place in the map, or `None` for a lane of its
    /// own.
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

    /// Whether a lane is still right under the current map.
    pub(super) fn keeps(&self, place: &QueueScope) -> bool {
        match place {
            QueueScope::Hash(hash) => self.shard_lane(*hash).is_none(),
            QueueScope::Shard(id, range) => self.map().is_some_and(|map| {
                let same = map.predict_place(range.end()).and_then(|at| map.open_shard(at));
                same == Some((*range, id)) && !self.distrusted.contains_key(id)
            }),
        }
    }

    /// Stops aggregating across hashes for every shard that takes a hash of `hull`.
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

    /// When the next distrust ends.
    pub(super) fn trust_again_ms(&self) -> Option<u64> {
        self.distrusted.values().min().copied()
    }

    /// Ends distrust that has lasted long enough. Says whether some did.
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
