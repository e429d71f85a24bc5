//! Checkpoint checker: no checkpoint passes a record of its lane that is not done, and none is
//! `ShardEnd` before the last record of the shard is done. The fencing checker verifies that
//! checkpoints only advance.

use super::retention::RetentionTracker;
use super::violation::Violation;
use crate::history::{HistoryEvent, HistoryLine};
use crate::record_source::SimRecord;
use anabranch_model::lease::{Checkpoint, LeaseChange, LeaseKey, Write, WriteOutcome};
use anabranch_model::position::Position;
use std::collections::BTreeMap;

/// The guarantee this checker verifies.
pub const PROMISE: &str = "a checkpoint never passes a record that is not done";

/// Checks that every stored checkpoint has only done records behind it.
pub fn check(lines: &[HistoryLine]) -> Option<Violation> {
    let mut open: BTreeMap<&LeaseKey, BTreeMap<Position, &SimRecord>> = BTreeMap::new();
    let mut retention = RetentionTracker::default();
    for (at, line) in lines.iter().enumerate() {
        for lost in retention.see(line.host, &line.what) {
            open.entry(&lost.grain.shard).or_default().remove(&lost.grain.at);
        }
        match &line.what {
            HistoryEvent::Put(grain) => {
                open.entry(&grain.shard).or_default().insert(grain.at, grain);
            }
            HistoryEvent::Handled { grain, done: true, .. } | HistoryEvent::Skipped(grain) => {
                open.entry(&grain.shard).or_default().remove(&grain.at);
            }
            HistoryEvent::WriteApplied {
                write: Write::Lease { key, change, .. },
                outcome: WriteOutcome::Done(_),
            } => {
                let Some(to) = reached(change) else { continue };
                let mut open = open.get(key).into_iter().flat_map(BTreeMap::values);
                if let Some(passed) = open.find(|grain| grain.is_behind(&to)) {
                    let words = format!("{to} was stored, and {passed} is not done");
                    let lease = Some(key.clone());
                    return Some(Violation { promise: PROMISE, words, line: at, lease });
                }
            }
            _ => {}
        }
    }
    None
}

fn reached(change: &LeaseChange) -> Option<Checkpoint> {
    match change {
        LeaseChange::Checkpoint { to, .. } => Some(to.clone()),
        LeaseChange::End { .. } => Some(Checkpoint::at(Position::ShardEnd)),
        _ => None,
    }
}
