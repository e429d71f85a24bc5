//! When a shard map is read anew: on evidence, one read at a time, with pauses after failures.

use super::ShardMap;
use crate::ids::ShardId;
use crate::lineage::Shard;
use std::sync::Arc;

/// The pause after the first failure, in milliseconds.
const FIRST_PAUSE_MS: u64 = 1_000;
/// The longest pause, in milliseconds. Pauses double up to it: the list is a call that all
/// producers of a stream share, so a failing one is left alone soon.
const LONGEST_PAUSE_MS: u64 = 30_000;

/// A read of the shard list that is under way. Its result counts only if it comes back with this.
#[derive(PartialEq, Eq, Debug)]
pub struct MapRead {
    /// Which read it is, so that one from before [`MapRefresh::discard`] is known.
    number: u64,
}

/// What came of a hint that the map is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalidation {
    /// The map is to be read anew.
    Due,
    /// A read is due or under way already.
    UnderWay,
    /// The map is newer than the hint.
    OlderThanMap,
    /// The map no longer sends anything to that shard, so a read would teach nothing.
    ShardAlreadyGone,
}

/// Where the map stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MapState {
    /// A read is due from this time on.
    Invalid { due_ms: u64 },
    /// A read is under way.
    Updating { number: u64 },
    /// The map holds until there is evidence against it.
    Ready { updated_ms: u64 },
}

/// The current map of a stream, and whether it is to be read anew. Reading is up to the caller.
///
/// | state | event | next |
/// |---|---|---|
/// | invalid | `begin`, once it is due | updating |
/// | updating | `finish` | ready |
/// | updating | `fail` | invalid, due after a pause |
/// | ready | `invalidate` with newer evidence | invalid, due at once |
/// | ready | `demand` | invalid, due at once |
/// | any | `discard` | invalid, due at once, without a map |
///
/// The last map predicts on in every state until `discard`: it is wrong for the shards that
/// were resharded, and those answer with the evidence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapRefresh {
    /// Where the map stands.
    state: MapState,
    /// The last map that was read.
    map: Option<Arc<ShardMap>>,
    /// The pause after the next failure.
    pause_ms: u64,
    /// How many reads were begun.
    begun: u64,
}

impl Default for MapRefresh {
    fn default() -> Self {
        Self {
            state: MapState::Invalid { due_ms: 0 },
            map: None,
            pause_ms: FIRST_PAUSE_MS,
            begun: 0,
        }
    }
}

impl MapRefresh {
    /// The last map that was read, to predict by. `None` before the first one: records then go
    /// alone, never aggregated across shards.
    #[inline]
    pub fn map(&self) -> Option<&Arc<ShardMap>> {
        self.map.as_ref()
    }

    /// Whether there is no evidence against the map.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, MapState::Ready { .. })
    }

    /// Whether a read is under way.
    pub fn is_updating(&self) -> bool {
        matches!(self.state, MapState::Updating { .. })
    }

    /// When the next read is due. `None` while one is under way or none is needed.
    pub fn due_ms(&self) -> Option<u64> {
        match self.state {
            MapState::Invalid { due_ms } => Some(due_ms),
            MapState::Updating { .. } | MapState::Ready { .. } => None,
        }
    }

    /// Begins a read, if one is due. There is never more than one.
    pub fn begin(&mut self, now_ms: u64) -> Option<MapRead> {
        if self.due_ms()? > now_ms {
            return None;
        }
        self.begun += 1;
        self.state = MapState::Updating { number: self.begun };
        Some(MapRead { number: self.begun })
    }

    /// Notes that a page of the list came: the service answers, so the next failure is a first one.
    pub fn page_came(&mut self, refresh: &MapRead) {
        if self.is_under_way(refresh) {
            self.pause_ms = FIRST_PAUSE_MS;
        }
    }

    /// Takes the list that a read brought. Returns the new map, or `None` if the read no longer
    /// counts.
    #[expect(clippy::needless_pass_by_value, reason = "a read comes to its end once")]
    pub fn finish(
        &mut self,
        refresh: MapRead,
        shards: impl IntoIterator<Item = Shard>,
        now_ms: u64,
    ) -> Option<&Arc<ShardMap>> {
        if !self.is_under_way(&refresh) {
            return None;
        }
        self.pause_ms = FIRST_PAUSE_MS;
        self.state = MapState::Ready { updated_ms: now_ms };
        let map = ShardMap::new(shards, now_ms, self.map.as_deref());
        Some(self.map.insert(Arc::new(map)))
    }

    /// Notes that a read failed. The next one is due after a pause.
    #[expect(clippy::needless_pass_by_value, reason = "a read comes to its end once")]
    pub fn fail(&mut self, refresh: MapRead, now_ms: u64) {
        if self.is_under_way(&refresh) {
            self.state = MapState::Invalid { due_ms: now_ms.saturating_add(self.pause_ms) };
            self.pause_ms = (self.pause_ms * 2).min(LONGEST_PAUSE_MS);
        }
    }

    /// Takes a hint that the map is wrong: a request that was sent at `seen_ms` was predicted to go
    /// to `predicted`, and another shard answered.
    ///
    /// The time is that of the sending, because a reply can be late and tell of a past that the
    /// map has taken in by then.
    pub fn invalidate(&mut self, seen_ms: u64, predicted: Option<&ShardId>) -> Invalidation {
        let MapState::Ready { updated_ms } = self.state else { return Invalidation::UnderWay };
        if seen_ms <= updated_ms {
            return Invalidation::OlderThanMap;
        }
        let is_open = |id| self.map.as_ref().is_some_and(|map| map.is_open(id));
        if !predicted.is_none_or(is_open) {
            return Invalidation::ShardAlreadyGone;
        }
        self.state = MapState::Invalid { due_ms: seen_ms };
        Invalidation::Due
    }

    /// Asks for a read that begins from now on: a reply can only be judged by a newer list.
    pub fn demand(&mut self, now_ms: u64) {
        if self.is_ready() {
            self.state = MapState::Invalid { due_ms: now_ms };
        }
    }

    /// Drops the map: the stream may be another one of the same name, with the same shard names.
    pub fn discard(&mut self) {
        self.map = None;
        self.state = MapState::Invalid { due_ms: 0 };
        self.pause_ms = FIRST_PAUSE_MS;
    }

    /// Whether a read still counts.
    pub fn counts(&self, refresh: &MapRead) -> bool {
        self.is_under_way(refresh)
    }

    fn is_under_way(&self, refresh: &MapRead) -> bool {
        self.state == MapState::Updating { number: refresh.number }
    }
}

#[cfg(test)]
mod tests;
