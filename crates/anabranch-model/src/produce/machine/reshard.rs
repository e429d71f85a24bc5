//! Shard map changes: Kinesis records are verified by the new map, and records are rerouted behind
//! a barrier.

use super::Machine;
use super::action::{Action, MachineNotice, ShardListRead, ShardListResult};
use super::judge::unpack;
use super::limit::ShardLimiter;
use crate::hash::HashRange;
use crate::ids::ShardId;
use crate::produce::outcome::AttemptResult;
use crate::produce::pending::PendingRecord;
use crate::produce::rate::ShardRate;
use crate::produce::seal::InFlightState;
use crate::produce::shard_queue::QueueScope;
use crate::retry::Fault;
use std::collections::{BTreeMap, BTreeSet};

/// Result of checking a Kinesis record against a list of shards.
enum RouteCheck {
    /// All of its user records belong to the shard that holds it.
    Correct,
    /// Some of its user records are outside the shard's range.
    Misrouted,
    /// The list does not contain the shard.
    NotListed,
}

impl<T> Machine<T> {
    /// Handles the result of a list read.
    pub fn shards(&mut self, read: ShardListRead, list: ShardListResult, now_ms: u64) {
        let ShardListRead { refresh, number, began_ms, full } = read;
        let shards = match list {
            Ok(shards) => shards,
            Err(fault) => {
                self.router.refresh.fail(refresh, now_ms);
                self.actions.push_back(Action::Notice(MachineNotice::MapFailed { fault }));
                if fault == Fault::Missing {
                    self.drop_map(now_ms);
                }
                return;
            }
        };
        // Verified by this list alone: an older list may contain a different shard of the same
        // name, from a stream that has since been deleted.
        let ranges: BTreeMap<ShardId, HashRange> =
            shards.iter().map(|shard| (shard.id.clone(), shard.range)).collect();
        if !self.router.refresh.counts(&refresh) {
            return;
        }
        self.full_read_wanted = false;
        let (strays, doubtful) = self.verify_all(&ranges, number, full, now_ms);
        let map = self.router.refresh.finish(refresh, shards, now_ms);
        let open = map.map_or(0, |map| map.open_count());
        self.router.seen_ms = now_ms;
        // Replies to requests sent after the list was requested prove more than the list does.
        self.router.proved_ms = self.router.proved_ms.max(began_ms);
        self.actions.push_back(Action::Notice(MachineNotice::MapRead { shards: open }));
        for hull in doubtful {
            self.router.distrust(hull, now_ms);
        }
        if self.full_read_wanted || !self.unjudged.is_empty() {
            self.router.refresh.demand(now_ms);
        }
        self.reroute(strays, now_ms);
    }

    /// Verifies every Kinesis record that waits for a list as new as this one. Returns the user
    /// records of misrouted ones, and the hash spans of those whose shard is missing even in a full
    /// list.
    fn verify_all(
        &mut self,
        ranges: &BTreeMap<ShardId, HashRange>,
        number: u64,
        full: bool,
        now_ms: u64,
    ) -> (Vec<PendingRecord<T>>, Vec<HashRange>) {
        let mut strays = Vec::new();
        let mut doubtful = Vec::new();
        for (until_ms, container) in self.unjudged.clone() {
            let Some(flight) = self.flights.get(&container) else { continue };
            let InFlightState::Unverified { shard, sequence, after_read } = &flight.stage else {
                continue;
            };
            if number <= *after_read {
                continue;
            }
            let verdict = match ranges.get(shard) {
                Some(range) if flight.record.fits_range(*range) => RouteCheck::Correct,
                Some(_) => RouteCheck::Misrouted,
                None => RouteCheck::NotListed,
            };
            match verdict {
                RouteCheck::Correct => {
                    let (shard, sequence) = (shard.clone(), *sequence);
                    self.unjudged.remove(&(until_ms, container));
                    if let Some(flight) = self.flights.remove(&container) {
                        self.accept(container, flight, shard, sequence, now_ms);
                    }
                }
                // A filtered list lacks shards that have closed since.
                RouteCheck::NotListed if !full => self.full_read_wanted = true,
                RouteCheck::NotListed => {
                    doubtful.push(flight.record.hash_span);
                    strays.extend(self.take_misrouted(until_ms, container, now_ms));
                }
                RouteCheck::Misrouted => {
                    strays.extend(self.take_misrouted(until_ms, container, now_ms));
                }
            }
        }
        (strays, doubtful)
    }

    /// Takes a misrouted Kinesis record and returns its user records.
    fn take_misrouted(
        &mut self,
        until_ms: u64,
        container: u64,
        now_ms: u64,
    ) -> Vec<PendingRecord<T>> {
        self.unjudged.remove(&(until_ms, container));
        let Some(mut flight) = self.flights.remove(&container) else { return Vec::new() };
        if let InFlightState::Unverified { shard, .. } = &flight.stage {
            if let Some(last) = flight.record.attempts.last_mut() {
                last.end = AttemptResult::Misrouted(shard.clone());
            }
            let records = flight.record.records.len();
            let shard = shard.clone();
            self.actions.push_back(Action::Notice(MachineNotice::Misrouted { shard, records }));
        }
        // Most readers drop a misrouted record, but not all of them.
        flight.record.maybe_landed = true;
        match flight.lane {
            Some(at) => self.lane_mut(at).in_flight -= 1,
            None => self.finish_flight(container, None, false, now_ms),
        }
        unpack(flight.record)
    }

    /// Maintains the map: drops it if it may belong to another stream, times out verifications, and
    /// requests a list when one is due.
    pub(super) fn keep_map(&mut self, now_ms: u64) {
        let idle_since = self.router.seen_ms.saturating_add(self.settings.map_idle_ms);
        if self.outstanding > 0 && self.router.map().is_some() && idle_since < now_ms {
            self.drop_map(now_ms);
        }
        let mut strays = Vec::new();
        while let Some((until_ms, container)) = self.unjudged.first().copied() {
            if until_ms > now_ms {
                break;
            }
            if let Some(flight) = self.flights.get(&container) {
                self.router.distrust(flight.record.hash_span, now_ms);
            }
            strays.extend(self.take_misrouted(until_ms, container, now_ms));
        }
        if !strays.is_empty() || self.router.trust_again(now_ms) {
            self.reroute(strays, now_ms);
        }
        if self.wants_map()
            && let Some(refresh) = self.router.refresh.begin(now_ms)
        {
            self.reads_begun += 1;
            self.read_began_ms = now_ms;
            let (number, full) = (self.reads_begun, self.full_read_wanted);
            let read = ShardListRead { refresh, number, began_ms: now_ms, full };
            self.actions.push_back(Action::ListShards(read));
        }
    }

    /// Drops the map. Until the next one each hash has a queue of its own, behind the barrier.
    pub(super) fn drop_map(&mut self, now_ms: u64) {
        if self.router.map().is_some() {
            self.router.discard();
            self.actions.push_back(Action::Notice(MachineNotice::MapDropped));
            self.reroute(Vec::new(), now_ms);
        }
    }

    /// Rebuilds the queues by the current map. Queues that no longer match it give up their
    /// records. A Kinesis record of theirs that is in flight blocks the queues over its hashes.
    fn reroute(&mut self, mut moved: Vec<PendingRecord<T>>, now_ms: u64) {
        let mut gone = vec![false; self.lanes.len()];
        self.shard_lanes = vec![None; self.router.map().map_or(0, |map| map.open_count())];
        for (at, place) in self.lanes.iter_mut().enumerate() {
            let Some(lane) = place else { continue };
            if self.router.keeps(&lane.place) {
                lane.in_line = false;
                lane.reserved = None;
                if let QueueScope::Shard(_, range) = &lane.place
                    && let Some(shard) = self.router.shard_at(range.end())
                {
                    self.shard_lanes[shard] = Some(at);
                }
                continue;
            }
            moved.extend(lane.drain(&mut self.pages));
            moved.extend(lane.sealed.drain(..).flat_map(unpack));
            if let QueueScope::Hash(hash) = lane.place {
                self.hash_lanes.remove(&hash.0);
            }
            gone[at] = true;
            *place = None;
            self.free.push(at);
        }
        for (container, flight) in &mut self.flights {
            if flight.lane.is_some_and(|at| gone[at]) {
                flight.lane = None;
                self.orphans.insert(*container, flight.record.hash_span);
            }
        }
        self.carry_rates(now_ms);
        self.ready.clear();
        for at in 0..self.lanes.len() {
            let Some(range) = self.lanes[at].as_ref().map(|lane| lane.place.range()) else {
                continue;
            };
            let blockers = self.count_blocking_records(range);
            self.lane_mut(at).blockers = blockers;
        }
        self.requeue(moved, now_ms);
        for at in 0..self.lanes.len() {
            self.touch(at, now_ms);
            self.remove_if_idle(at);
        }
    }

    /// Gives each open shard its previous rate, or a full one if it is new.
    fn carry_rates(&mut self, now_ms: u64) {
        let old = std::mem::take(&mut self.limiters);
        let mut rates: BTreeMap<ShardId, ShardRate> =
            old.into_iter().map(|limiter| (limiter.shard, limiter.rate)).collect();
        let Some(map) = self.router.map() else {
            self.last_numbers.clear();
            return;
        };
        // Closed shards take no more records, so their sequence numbers are not needed.
        let open: BTreeSet<&ShardId> =
            (0..map.open_count()).filter_map(|at| map.open_shard(at)).map(|(_, id)| id).collect();
        self.last_numbers.retain(|shard, _| open.contains(shard));
        let full = || {
            let (records, bytes) =
                (self.settings.shard_records_per_second, self.settings.shard_bytes_per_second);
            ShardRate::new(records, bytes, now_ms)
        };
        self.limiters = (0..map.open_count())
            .filter_map(|at| map.open_shard(at))
            .map(|(_, id)| ShardLimiter::new(id.clone(), rates.remove(id).unwrap_or_else(full)))
            .collect();
    }

    /// Puts records back in put order, each in the queue that it now belongs to.
    pub(super) fn requeue(&mut self, mut records: Vec<PendingRecord<T>>, now_ms: u64) {
        records.sort_by_key(|record| record.number);
        let mut refused = Vec::new();
        let mut by_lane: BTreeMap<usize, Vec<PendingRecord<T>>> = BTreeMap::new();
        for record in records {
            match self.refusal(|| record.key_id(), record.number) {
                Some(why) => refused.push((record, why)),
                None => by_lane.entry(self.lane_for(record.put.hash)).or_default().push(record),
            }
        }
        for (at, older) in by_lane {
            let (lane, pages) = self.lane_and_pages(at);
            lane.merge(older, pages);
            self.touch(at, now_ms);
        }
        for (record, why) in refused {
            self.refuse(vec![record], &why);
        }
    }
}
