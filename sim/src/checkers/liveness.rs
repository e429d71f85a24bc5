//! Liveness: once faults have stopped, every shard is soon delivered, and load is level.

use super::violation::Violation;
use crate::history::{HostId, Line, What};
use anabranch_model::lease::LeaseKey;
use std::collections::{BTreeMap, BTreeSet};

/// The promise.
pub const PROMISE: &str =
    "once faults stop, every shard is owned in two lease times and load is level";

/// What ought to be true in a stretch of the quiet phase.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quiet {
    /// The stretch begins here, in the world's time.
    pub from_ms: u64,
    /// It ends here.
    pub until_ms: u64,
    /// The leases that can be delivered: unfinished, with every parent at its end.
    pub ready: BTreeSet<LeaseKey>,
    /// The leases that were done before the stretch, and whose end nothing held up, but whose rows
    /// don't say it after the stretch either.
    pub stuck: BTreeSet<LeaseKey>,
    /// The hosts that are up.
    pub hosts: BTreeSet<HostId>,
    /// Whether load ought to be level by now.
    pub level: bool,
}

/// Whether each ready lease was delivered in the stretch, by hosts with as much as each other.
pub fn check(lines: &[Line], quiet: &Quiet) -> Option<Violation> {
    let mut last: BTreeMap<&LeaseKey, HostId> = BTreeMap::new();
    let from = lines.partition_point(|line| line.at_ms < quiet.from_ms);
    let until = lines.partition_point(|line| line.at_ms <= quiet.until_ms);
    for line in &lines[from..until] {
        if let (What::Delivered { hold, .. }, Some(host)) = (&line.what, line.host) {
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
