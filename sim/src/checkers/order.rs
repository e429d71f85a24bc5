//! Order (G1): a record of a key is handed out for the first time when all before it are done.
//!
//! A worker whose host was paused with its clock may still hand out what retention took meanwhile,
//! after the next owner has gone on behind it.

use super::pauses::HostPauses;
use super::retention::RetentionTracker;
use super::violation::{Violation, of_grain};
use crate::history::{HistoryEvent, HistoryLine};
use crate::record_source::SimRecord;
use anabranch_model::ids::StreamName;
use std::collections::{BTreeMap, BTreeSet};

/// The promise.
pub const PROMISE: &str = "each key's records come in the order of their puts";

/// What is known of one key.
#[derive(Default)]
struct KeyState {
    /// The records that were put, are not done, and were not lost before they were read.
    open: BTreeSet<u64>,
    /// Those of a shard that is past retention as a whole, which may come late.
    excused: BTreeSet<u64>,
    /// Those that were lost when their session lost its lease. Only a paused worker has them still.
    lost: BTreeSet<u64>,
    /// The records that were handed out.
    handed: BTreeSet<u64>,
}

/// Whether every record was handed out after all that were put before it under its key were done.
pub fn check(lines: &[HistoryLine], lease_time_ms: u64) -> Option<Violation> {
    let mut pauses = HostPauses::default();
    let mut keys: BTreeMap<(&StreamName, &str), KeyState> = BTreeMap::new();
    // How many records of the same call are still to come, and which came. Inside of a call it is the
    // handler that keeps the order.
    let (mut to_come, mut together) = (0, BTreeSet::new());
    let mut retention = RetentionTracker::default();
    for (at, line) in lines.iter().enumerate() {
        pauses.see(line);
        for lost in retention.see(line.host, &line.what) {
            let key = keys.entry(name(lost.grain)).or_default();
            key.open.remove(&lost.grain.number);
            let late = if lost.may_come { &mut key.excused } else { &mut key.lost };
            late.insert(lost.grain.number);
        }
        match &line.what {
            HistoryEvent::Put(grain) => {
                keys.entry(name(grain)).or_default().open.insert(grain.number);
            }
            HistoryEvent::Handled { grain, done: true, .. } | HistoryEvent::Skipped(grain) => {
                keys.entry(name(grain)).or_default().open.remove(&grain.number);
            }
            HistoryEvent::Called { records, .. } => {
                (to_come, together) = (*records, BTreeSet::new());
            }
            HistoryEvent::Handed { hold, grain } => {
                let key = keys.entry(name(grain)).or_default();
                let words = handed(key, grain, &together);
                let is_lost = key.lost.contains(&grain.number);
                let is_excused = || is_lost && pauses.excuse(line, hold, lease_time_ms);
                if let Some(words) = words.filter(|_| !is_excused()) {
                    return Some(of_grain(PROMISE, words, at, hold));
                }
                if to_come > 0 {
                    to_come -= 1;
                    together.insert((&*grain.key, grain.number));
                }
                if to_come == 0 {
                    together.clear();
                }
            }
            _ => {}
        }
    }
    None
}

/// A key and the stream that it belongs to.
fn name(grain: &SimRecord) -> (&StreamName, &str) {
    (&grain.shard.stream, &grain.key)
}

fn handed(
    key: &mut KeyState,
    grain: &SimRecord,
    together: &BTreeSet<(&str, u64)>,
) -> Option<String> {
    if !key.handed.insert(grain.number) || key.excused.contains(&grain.number) {
        return None;
    }
    let is_together = |number: &u64| together.contains(&(&*grain.key, *number));
    if let Some(before) = key.open.range(..grain.number).find(|number| !is_together(number)) {
        return Some(format!("{grain} came before {}#{before} was done", grain.key));
    }
    let after = key.handed.last().filter(|last| **last > grain.number)?;
    Some(format!("{grain} came for the first time after {}#{after}", grain.key))
}
