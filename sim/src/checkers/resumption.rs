//! Resumption checker: a new owner resumes at the row's checkpoint when it took the lease, and
//! skips nothing.

use super::violation::Violation;
use crate::history::{HistoryEvent, HistoryLine, brief};
use anabranch_model::lease::{LeaseChange, LeaseKey, LeaseToken, StoredRow, Write, WriteOutcome};
use anabranch_model::position::Position;
use std::collections::BTreeMap;

/// The guarantee this checker verifies.
pub const PROMISE: &str = "a shard is read on from its checkpoint, without a gap";

/// Checks that every reader began at the row's checkpoint when it changed owner, and skipped
/// nothing.
pub fn check(lines: &[HistoryLine]) -> Option<Violation> {
    let mut rows: BTreeMap<(LeaseKey, u64), Position> = BTreeMap::new();
    let mut delivered: BTreeMap<LeaseKey, u64> = BTreeMap::new();
    for (at, line) in lines.iter().enumerate() {
        let (hold, broken) = match &line.what {
            // A row that is created again counts its terms from the start.
            HistoryEvent::WriteApplied {
                write: Write::Lease { key, change: LeaseChange::Delete { .. }, .. },
                outcome: WriteOutcome::Done(_),
            } => {
                rows.retain(|(of, _), _| of != key);
                continue;
            }
            HistoryEvent::WriteApplied {
                outcome: WriteOutcome::Done(StoredRow::Lease(row)),
                ..
            } => {
                let stood = row.checkpoint.lowest();
                rows.entry((row.key.clone(), row.term)).or_insert(stood);
                continue;
            }
            HistoryEvent::Began { hold, from } => (hold, began(&rows, hold, *from)),
            HistoryEvent::Delivered { hold, number } => {
                let highest = delivered.entry(hold.key.clone()).or_default();
                let gap = *number > *highest + 1;
                let words = format!("record {number} was delivered right after {highest}");
                *highest = (*highest).max(*number);
                (hold, gap.then_some(words))
            }
            _ => continue,
        };
        if let Some(words) = broken {
            let lease = Some(hold.key.clone());
            return Some(Violation { promise: PROMISE, words, line: at, lease });
        }
    }
    None
}

fn began(
    rows: &BTreeMap<(LeaseKey, u64), Position>,
    hold: &LeaseToken,
    from: Position,
) -> Option<String> {
    match rows.get(&(hold.key.clone(), hold.term)) {
        Some(stood) if from >= *stood => None,
        Some(stood) => {
            Some(format!("{} began behind {from}; the row stood at {stood}", brief(hold)))
        }
        None => Some(format!("{} began, and no write made that term", brief(hold))),
    }
}
