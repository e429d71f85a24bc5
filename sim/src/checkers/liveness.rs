//! Liveness checker: once faults have stopped, every shard is soon delivered, and load is level.

use super::violation::Violation;
use crate::history::{HistoryEvent, HistoryLine, HostId};
use anabranch_model::ids::ShardId;
use anabranch_model::lease::{Lease, LeaseKey, WorkerId};
use std::collections::{BTreeMap, BTreeSet};

/// The guarantee this checker verifies.
pub const PROMISE: &str =
    "once faults stop, every shard is owned in two lease times and load is level";

/// The expected state during an interval of the quiet phase.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QuietPhase {
    /// Start of the interval, in world time.
    pub from_ms: u64,
    /// End of the interval, inclusive, in world time.
    pub until_ms: u64,
    /// Leases that can be delivered: unfinished, with every parent at its end.
    pub ready: BTreeSet<LeaseKey>,
    /// Leases that were done before the interval and whose end nothing delayed, but whose rows
    /// still do not say so after it.
    pub stuck: BTreeSet<LeaseKey>,
    /// Hosts that are up.
    pub hosts: BTreeSet<HostId>,
    /// True if load must be level by now.
    pub level: bool,
}

/// Checks that each ready lease was delivered in the interval and that load was level among hosts.
pub fn check(lines: &[HistoryLine], quiet: &QuietPhase) -> Option<Violation> {
    let mut last: BTreeMap<&LeaseKey, HostId> = BTreeMap::new();
    let from = lines.partition_point(|line| line.at_ms < quiet.from_ms);
    let until = lines.partition_point(|line| line.at_ms <= quiet.until_ms);
    for line in &lines[from..until] {
        if let (HistoryEvent::Delivered { hold, .. }, Some(host)) = (&line.what, line.host) {
            last.insert(&hold.key, host);
        }
    }
    let end = until.saturating_sub(1);
    let broken = |words: String, lease: Option<&LeaseKey>| {
        Some(Violation { promise: PROMISE, words, line: end, lease: lease.cloned() })
    };
    if let Some(idle) = quiet.ready.iter().find(|key| !last.contains_key(key)) {
        let stretch = format!("{} and {} ms", quiet.from_ms, quiet.until_ms);
        return broken(format!("nobody delivers {idle} between {stretch}"), Some(idle));
    }
    if let Some(stuck) = quiet.stuck.first() {
        let words = format!("{stuck} is done, and its row does not say its end");
        return broken(words, Some(stuck));
    }
    let mut loads: BTreeMap<HostId, usize> = quiet.hosts.iter().map(|host| (*host, 0)).collect();
    for host in last.values() {
        *loads.entry(*host).or_default() += 1;
    }
    let (lowest, highest) = (loads.values().min(), loads.values().max());
    match (lowest, highest) {
        (Some(low), Some(high)) if quiet.level && high - low > 1 => {
            broken(format!("load is not level: {loads:?}"), None)
        }
        _ => None,
    }
}

/// Distribution of the readable shards: those unfinished, with every parent at its end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeaseShares {
    /// Shards without a running owner.
    pub unowned: BTreeSet<LeaseKey>,
    /// Number of shards that each host owns.
    pub loads: BTreeMap<HostId, usize>,
}

impl LeaseShares {
    /// Computes how `rows` share the shards among the hosts that are up, each with the worker that
    /// runs there. An earlier worker of a host owns nothing: it is dead, and its leases must be
    /// taken over, if only by its successor.
    pub fn of(rows: &[Lease], up: impl IntoIterator<Item = (HostId, Option<WorkerId>)>) -> Self {
        let up: Vec<(HostId, Option<WorkerId>)> = up.into_iter().collect();
        let mut loads: BTreeMap<HostId, usize> = up.iter().map(|(host, _)| (*host, 0)).collect();
        let runs_on = |owner: &WorkerId| {
            up.iter().find(|(_, worker)| worker.as_ref() == Some(owner)).map(|(host, _)| *host)
        };
        let row_of = |parent: &LeaseKey| rows.iter().find(|row| row.key == *parent);
        let ended = |parent: &LeaseKey| row_of(parent).is_none_or(Lease::is_ended);
        // A parent without a row has expired, or its own ancestors are still being read: their
        // numbers are lower.
        let may_wait = |parent: &LeaseKey| {
            let older = |row: &Lease| {
                row.key.stream == parent.stream && row.key.shard.index() < parent.shard.index()
            };
            row_of(parent).is_none() && rows.iter().any(|row| older(row) && !row.is_ended())
        };
        let parents = |row: &Lease| {
            let stream = row.key.stream.clone();
            let key =
                move |shard: &ShardId| LeaseKey { stream: stream.clone(), shard: shard.clone() };
            row.parents.iter().map(key).collect::<Vec<_>>()
        };
        let mut unowned = BTreeSet::new();
        let is_ready = |row: &&Lease| !row.is_ended() && parents(row).iter().all(ended);
        for row in rows.iter().filter(is_ready) {
            let owner = row.owner.as_ref().and_then(runs_on);
            match owner.and_then(|host| loads.get_mut(&host)) {
                Some(load) => *load += 1,
                None if parents(row).iter().any(may_wait) => {}
                None => {
                    unowned.insert(row.key.clone());
                }
            }
        }
        Self { unowned, loads }
    }

    /// Returns true if no host has two shards more than another.
    pub fn is_level(&self) -> bool {
        let (lowest, highest) = (self.loads.values().min(), self.loads.values().max());
        lowest.zip(highest).is_none_or(|(low, high)| high - low <= 1)
    }
}

/// Times since which shards have had no owner, across successive reads of the rows.
#[derive(Clone, Debug, Default)]
pub struct UnownedSince(BTreeMap<LeaseKey, u64>);

impl UnownedSince {
    /// Processes one read of the rows. Returns a description of a shard that has had no owner for
    /// longer than `most_ms`.
    pub fn observe(&mut self, now_ms: u64, shared: &LeaseShares, most_ms: u64) -> Option<String> {
        self.0.retain(|key, _| shared.unowned.contains(key));
        for key in &shared.unowned {
            self.0.entry(key.clone()).or_insert(now_ms);
        }
        let late = self.0.iter().find(|(_, since_ms)| now_ms > **since_ms + most_ms);
        late.map(|(key, since_ms)| format!("{key} has no owner since {since_ms} ms"))
    }
}
