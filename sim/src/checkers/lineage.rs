//! Lineage checker: no record of a shard is handed out before every record of its ancestors is
//! done.

use super::retention::RetentionTracker;
use super::violation::{Violation, of_grain};
use crate::history::{HistoryEvent, HistoryLine};
use anabranch_model::lease::LeaseKey;
use anabranch_model::position::Position;
use std::collections::{BTreeMap, BTreeSet};

/// The guarantee this checker verifies.
pub const PROMISE: &str = "a shard is read when all shards that it came from are done";

/// Checks that every shard was begun after its ancestors were done.
pub fn check(lines: &[HistoryLine]) -> Option<Violation> {
    let mut parents: BTreeMap<&LeaseKey, &[LeaseKey]> = BTreeMap::new();
    let mut open: BTreeMap<&LeaseKey, BTreeSet<Position>> = BTreeMap::new();
    let mut retention = RetentionTracker::default();
    for (at, line) in lines.iter().enumerate() {
        for lost in retention.see(line.host, &line.what) {
            open.entry(&lost.grain.shard).or_default().remove(&lost.grain.at);
        }
        match &line.what {
            HistoryEvent::Resharded { closed, opened } => {
                parents.extend(opened.iter().map(|child| (child, closed.as_slice())));
            }
            HistoryEvent::Put(grain) => {
                open.entry(&grain.shard).or_default().insert(grain.at);
            }
            HistoryEvent::Handled { grain, done: true, .. } | HistoryEvent::Skipped(grain) => {
                open.entry(&grain.shard).or_default().remove(&grain.at);
            }
            HistoryEvent::Handed { hold, grain } => {
                let unfinished = ancestors(&parents, &grain.shard)
                    .into_iter()
                    .find(|shard| open.get(shard).is_some_and(|open| !open.is_empty()));
                if let Some(ancestor) = unfinished {
                    let words = format!("{grain} of {} came before {ancestor} was done", hold.key);
                    return Some(of_grain(PROMISE, words, at, hold));
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns all ancestors of a shard.
pub(super) fn ancestors<'a>(
    parents: &BTreeMap<&'a LeaseKey, &'a [LeaseKey]>,
    shard: &LeaseKey,
) -> BTreeSet<&'a LeaseKey> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&LeaseKey> = parents.get(shard).into_iter().copied().flatten().collect();
    while let Some(shard) = next.pop() {
        if found.insert(shard) {
            next.extend(parents.get(shard).into_iter().copied().flatten());
        }
    }
    found
}
