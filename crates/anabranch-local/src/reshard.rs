//! Splits, merges and changes of the shard count, planned as pure functions over the open shards.
//!
//! A plan is a list of shards that open and shards that close. It takes effect at once: the stream
//! is UPDATING for a while, but the children already accept records. On AWS the parents accept
//! records until the end of UPDATING.

use crate::change::{ChangeKind, NewShard, Reshard};
use crate::engine::Engine;
use crate::error::ApiError;
use crate::fault::{FaultEffect, FaultSite};
use crate::op::Operation;
use crate::shard::high_limb;
use crate::stream::Topology;
use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::ids::ShardId;

/// A shard during planning.
#[derive(Debug, Clone, Copy)]
struct PlannedShard {
    index: u32,
    range: HashRange,
    high: u64,
}

/// A reshard under construction.
struct ReshardPlan {
    /// The index of the next shard that opens.
    next_index: u32,
    /// Time of the reshard, in milliseconds since 1970.
    now_ms: u64,
    opens: Vec<NewShard>,
    closes: Vec<u32>,
}

impl ReshardPlan {
    fn new(topology: &Topology, now_ms: u64) -> Self {
        let next_index = u32::try_from(topology.shards.len()).expect("far fewer than 2^32 shards");
        Self { next_index, now_ms, opens: Vec::new(), closes: Vec::new() }
    }

    /// Opens one shard as a child of `parents`. The caller closes them.
    fn open(&mut self, range: HashRange, parents: &[PlannedShard]) -> PlannedShard {
        let high = high_limb(self.now_ms, parents.iter().map(|parent| parent.high));
        let index = self.next_index;
        self.next_index += 1;
        let parents = parents.iter().map(|parent| parent.index).collect();
        self.opens.push(NewShard { range, parents, high });
        PlannedShard { index, range, high }
    }

    fn split(&mut self, piece: PlannedShard, at: HashKey) -> Option<(PlannedShard, PlannedShard)> {
        let (low, high) = piece.range.split_at(at)?;
        self.closes.push(piece.index);
        Some((self.open(low, &[piece]), self.open(high, &[piece])))
    }

    fn merge(&mut self, left: PlannedShard, right: PlannedShard) -> Option<PlannedShard> {
        let range = left.range.join(&right.range)?;
        self.closes.extend([left.index, right.index]);
        Some(self.open(range, &[left, right]))
    }

    fn finish(self, until_ms: u64) -> Reshard {
        Reshard { opens: self.opens, closes: self.closes, until_ms }
    }
}

fn piece(topology: &Topology, index: u32) -> Option<PlannedShard> {
    let state = topology.shards.get(index as usize)?;
    let shard = &state.shard;
    state.is_open().then(|| PlannedShard { index, range: shard.range, high: shard.stamp.high })
}

/// Plans the split of an open shard at `at`. Returns `None` if it is closed or `at` is not inside
/// it.
pub(crate) fn split(
    topology: &Topology,
    index: u32,
    at: HashKey,
    now_ms: u64,
    until_ms: u64,
) -> Option<Reshard> {
    let mut plan = ReshardPlan::new(topology, now_ms);
    plan.split(piece(topology, index)?, at)?;
    Some(plan.finish(until_ms))
}

/// Plans the merge of two adjacent open shards. Returns `None` if one is closed or they are not
/// adjacent.
pub(crate) fn merge(
    topology: &Topology,
    left: u32,
    right: u32,
    now_ms: u64,
    until_ms: u64,
) -> Option<Reshard> {
    let mut plan = ReshardPlan::new(topology, now_ms);
    plan.merge(piece(topology, left)?, piece(topology, right)?)?;
    Some(plan.finish(until_ms))
}

/// Plans `count` shards of equal size. Every open shard is split at each new boundary inside it,
/// then the pieces between two new boundaries are merged. Shards that already fit stay. Returns
/// `None` if all of them do.
pub(crate) fn to_count(
    topology: &Topology,
    count: u32,
    now_ms: u64,
    until_ms: u64,
) -> Option<Reshard> {
    let mut plan = ReshardPlan::new(topology, now_ms);
    let targets = HashRange::divide_all(count);
    let mut pieces = Vec::new();
    for index in topology.open_shards() {
        let mut rest = piece(topology, index)?;
        for target in &targets {
            if let Some((low, high)) = plan.split(rest, target.start()) {
                pieces.push(low);
                rest = high;
            }
        }
        pieces.push(rest);
    }
    for group in pieces.chunk_by(|a, b| same_target(&targets, a.range, b.range)) {
        let mut merged = group[0];
        for next in &group[1..] {
            merged = plan.merge(merged, *next)?;
        }
    }
    (!plan.opens.is_empty()).then(|| plan.finish(until_ms))
}

fn same_target(targets: &[HashRange], a: HashRange, b: HashRange) -> bool {
    let target = |range: HashRange| targets.partition_point(|t| t.end() < range.start());
    target(a) == target(b)
}

/// Returns the key at which a range splits into two halves.
pub(crate) fn middle(range: HashRange) -> HashKey {
    let (start, end) = (range.start().0, range.end().0);
    HashKey(start + (end - start) / 2 + 1)
}

impl Engine {
    /// Splits an open shard in the middle at once, in any state of the stream. Without a shard,
    /// splits the first open one.
    pub fn split_now(&self, stream: &str, shard: Option<&str>) -> Result<(), ApiError> {
        self.reshard_now(stream, shard, |topology, index, now_ms, until_ms| {
            let range = topology.shards[index as usize].shard.range;
            split(topology, index, middle(range), now_ms, until_ms)
        })
    }

    /// Merges an open shard with its upper neighbour (the last shard with its lower one) at once,
    /// in any state of the stream. Without a shard, merges the first open one.
    pub fn merge_now(&self, stream: &str, shard: Option<&str>) -> Result<(), ApiError> {
        self.reshard_now(stream, shard, |topology, index, now_ms, until_ms| {
            let open: Vec<u32> = topology.open_shards().collect();
            let at = open.iter().position(|other| *other == index)?;
            let left = at.min(open.len().checked_sub(2)?);
            merge(topology, open[left], open[left + 1], now_ms, until_ms)
        })
    }

    fn reshard_now(
        &self,
        stream: &str,
        shard: Option<&str>,
        plan: impl FnOnce(&Topology, u32, u64, u64) -> Option<Reshard>,
    ) -> Result<(), ApiError> {
        self.change_stream(stream, |scene| {
            let missing = || self.shard_not_found(stream, shard.unwrap_or("(any open)"));
            let index = match shard {
                Some(id) => ShardId::from(id).index(),
                None => scene.topology.open_shards().next(),
            };
            let index = index.filter(|index| piece(scene.topology, *index).is_some());
            let until_ms = scene.now_ms.saturating_add(self.options().update_delay_ms);
            let reshard = plan(scene.topology, index.ok_or_else(missing)?, scene.now_ms, until_ms)
                .ok_or_else(|| ApiError::invalid("The shard can't be split or merged."))?;
            Ok(Some(ChangeKind::Reshard(reshard)))
        })
    }

    /// Carries out the split or merge that a fault rule requests before a call. Ignores one that is
    /// impossible, because the call is not at fault.
    pub(crate) fn reshard_on_request(&self, operation: Operation, stream: &str) {
        let site = FaultSite { operation, stream: Some(stream), shards: &[] };
        let _ = match self.faults().reshard(site) {
            Some((FaultEffect::Split, shard)) => self.split_now(stream, shard.as_deref()),
            Some((FaultEffect::Merge, shard)) => self.merge_now(stream, shard.as_deref()),
            _ => Ok(()),
        };
    }

    /// Expires every iterator issued so far, of one stream or of all.
    pub fn expire_iterators(&self, stream: Option<&str>) -> Result<(), ApiError> {
        match stream {
            Some(name) => self.find_by_name(name)?.expire_iterators(),
            None => self.present_streams().iter().for_each(|(s, _)| s.expire_iterators()),
        }
        Ok(())
    }
}
