//! Refresh of a shard map: on evidence, one read at a time, with backoff after failures.

use super::ShardMap;
use crate::ids::ShardId;
use crate::lineage::Shard;
use std::sync::Arc;

/// Pause after the first failure, in milliseconds.
const FIRST_PAUSE_MS: u64 = 1_000;
/// Longest pause, in milliseconds. Pauses double up to it. All producers of a stream share the
/// limit of the list call, so a failing one backs off quickly.
const LONGEST_PAUSE_MS: u64 = 30_000;

/// A read of the shard list in flight. Its result counts only together with this token.
#[derive(PartialEq, Eq, Debug)]
pub struct MapRead {
    /// Number of the read, to recognise one from before [`MapRefresh::discard`].
    number: u64,
}

/// Result of a hint that the map is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalidation {
    /// A read of the map is now due.
    Due,
    /// A read is already due or in flight.
    UnderWay,
    /// The map is newer than the hint.
    OlderThanMap,
    /// The map no longer routes records to that shard, so a read would not help.
    ShardAlreadyGone,
}

/// State of the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MapState {
    /// A read is due from this time on.
    Invalid { due_ms: u64 },
    /// A read is in flight.
    Updating { number: u64 },
    /// The map is valid until there is evidence against it.
    Ready { updated_ms: u64 },
}

/// The current map of a stream, and its refresh state. The caller performs the reads.
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
/// The last map continues to predict in every state until `discard`. It is wrong only for shards
/// that were resharded, and replies from these provide the evidence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapRefresh {
    state: MapState,
    /// Last map that was read.
    map: Option<Arc<ShardMap>>,
    /// Pause after the next failure.
    pause_ms: u64,
    /// Number of reads begun.
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
    /// Returns the last map that was read. Returns `None` before the first one: records are then
    /// sent alone, never aggregated across shards.
    #[inline]
    pub fn map(&self) -> Option<&Arc<ShardMap>> {
        self.map.as_ref()
    }

    /// Returns true if there is no evidence against the map.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, MapState::Ready { .. })
    }

    /// Returns true if a read is in flight.
    pub fn is_updating(&self) -> bool {
        matches!(self.state, MapState::Updating { .. })
    }

    /// Returns when the next read is due, or `None` while one is in flight or none is needed.
    pub fn due_ms(&self) -> Option<u64> {
        match self.state {
            MapState::Invalid { due_ms } => Some(due_ms),
            MapState::Updating { .. } | MapState::Ready { .. } => None,
        }
    }

    /// Begins a read if one is due. There is never more than one.
    pub fn begin(&mut self, now_ms: u64) -> Option<MapRead> {
        if self.due_ms()? > now_ms {
            return None;
        }
        self.begun += 1;
        self.state = MapState::Updating { number: self.begun };
        Some(MapRead { number: self.begun })
    }

    /// Records that a page of the list arrived: the service answers, so the backoff starts again.
    pub fn page_came(&mut self, refresh: &MapRead) {
        if self.is_under_way(refresh) {
            self.pause_ms = FIRST_PAUSE_MS;
        }
    }

    /// Handles the list of a read. Returns the new map, or `None` if the read no longer counts.
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

    /// Handles the failure of a read. The next one is due after a pause.
    #[expect(clippy::needless_pass_by_value, reason = "a read comes to its end once")]
    pub fn fail(&mut self, refresh: MapRead, now_ms: u64) {
        if self.is_under_way(&refresh) {
            self.state = MapState::Invalid { due_ms: now_ms.saturating_add(self.pause_ms) };
            self.pause_ms = (self.pause_ms * 2).min(LONGEST_PAUSE_MS);
        }
    }

    /// Handles a hint that the map is wrong: a request sent at `seen_ms` was predicted to go to
    /// `predicted`, and another shard answered.
    ///
    /// `seen_ms` is the time of sending, because a late reply may reflect a past that the map
    /// already includes.
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

    /// Requests a read that begins from now on, because a reply can only be verified by a newer
    /// list.
    pub fn demand(&mut self, now_ms: u64) {
        if self.is_ready() {
            self.state = MapState::Invalid { due_ms: now_ms };
        }
    }

    /// Drops the map: the stream may be another one of the same name, with the same shard ids.
    pub fn discard(&mut self) {
        self.map = None;
        self.state = MapState::Invalid { due_ms: 0 };
        self.pause_ms = FIRST_PAUSE_MS;
    }

    /// Returns true if a read still counts.
    pub fn counts(&self, refresh: &MapRead) -> bool {
        self.is_under_way(refresh)
    }

    fn is_under_way(&self, refresh: &MapRead) -> bool {
        self.state == MapState::Updating { number: refresh.number }
    }
}

#[cfg(test)]
mod tests;
