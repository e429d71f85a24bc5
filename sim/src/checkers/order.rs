//! Order checker (G1): a record of a key is first handed out when all records before it are done.
//!
//! A worker whose host was paused with its clock may still hand out records that retention removed
//! meanwhile, after the next owner has continued behind them.

use super::pauses::HostPauses;
use super::retention::RetentionTracker;
use super::violation::{Violation, of_grain};
use crate::history::{HistoryEvent, HistoryLine};
use crate::record_source::SimRecord;
use anabranch_model::ids::StreamName;
use std::collections::{BTreeMap, BTreeSet};

/// The guarantee this checker verifies.
pub const PROMISE: &str = "each key's records come in the order of their puts";

/// State of one key.
#[derive(Default)]
struct KeyState {
    /// Records that were put, are not done, and were not lost before they were read.
    open: BTreeSet<u64>,
    /// Records of a shard that is entirely past retention. They may arrive late.
    excused: BTreeSet<u64>,
    /// Records that were lost when their session lost its lease. Only a paused worker may still
    /// have them.
    lost: BTreeSet<u64>,
    /// Records that were handed out.
    handed: BTreeSet<u64>,
}

/// Checks that every record was handed out after all earlier records of its key were done.
pub fn check(lines: &[HistoryLine], lease_time_ms: u64) -> Option<Violation> {
    let mut pauses = HostPauses::default();
    let mut keys: BTreeMap<(&StreamName, &str), KeyState> = BTreeMap::new();
    // Number of records of the same call still to come, and the records of the call so far. Within
    // a call the handler keeps the order.
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

/// Returns the stream and the key of a record.
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
