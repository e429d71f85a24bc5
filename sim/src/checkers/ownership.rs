//! Ownership checker: two workers never deliver one shard at once, no worker delivers under two
//! terms, and none delivers under a term that the row has left.
//!
//! A worker whose host was paused with its clock keeps delivering until its lease time is over by
//! that clock. In that case only checkpoints are fenced.

use super::pauses::HostPauses;
use super::violation::{Violation, of_grain};
use crate::history::{HistoryEvent, HistoryLine, brief};
use anabranch_model::lease::{LeaseChange, LeaseKey, LeaseToken, StoredRow, Write, WriteOutcome};
use std::collections::BTreeMap;

/// The guarantee this checker verifies.
pub const PROMISE: &str = "one worker at a time delivers a shard";

/// State of one lease.
#[derive(Default)]
struct OwnershipState<'a> {
    /// Newest lease token under which records were delivered.
    newest: Option<&'a LeaseToken>,
    /// Term of the row, from the writes that were applied.
    term: u64,
}

/// Checks that deliveries under one lease token end before those under the next begin, and before
/// the row's term advances.
pub fn check(lines: &[HistoryLine], lease_time_ms: u64) -> Option<Violation> {
    let mut pauses = HostPauses::default();
    let mut leases: BTreeMap<&LeaseKey, OwnershipState<'_>> = BTreeMap::new();
    for (at, line) in lines.iter().enumerate() {
        pauses.see(line);
        match &line.what {
            HistoryEvent::WriteApplied {
                write: Write::Lease { key, change, .. },
                outcome: WriteOutcome::Done(stored),
            } => landed(leases.entry(key).or_default(), change, stored),
            HistoryEvent::Delivered { hold, .. } | HistoryEvent::Handed { hold, .. } => {
                let broken = delivered(leases.entry(&hold.key).or_default(), hold);
                let excused = || pauses.excuse(line, hold, lease_time_ms);
                if let Some(words) = broken.filter(|_| !excused()) {
                    return Some(of_grain(PROMISE, words, at, hold));
                }
            }
            _ => {}
        }
    }
    None
}

fn landed(known: &mut OwnershipState<'_>, change: &LeaseChange, stored: &StoredRow) {
    match (change, stored) {
        (
            LeaseChange::Take { .. } | LeaseChange::HandOver { .. } | LeaseChange::Release { .. },
            StoredRow::Lease(row),
        ) => known.term = row.term,
        // A row that is created again counts its terms from the start.
        (LeaseChange::Delete { .. }, _) => *known = OwnershipState::default(),
        _ => {}
    }
}

fn delivered<'a>(known: &mut OwnershipState<'a>, hold: &'a LeaseToken) -> Option<String> {
    let newest = *known.newest.get_or_insert(hold);
    if hold.term > newest.term {
        known.newest = Some(hold);
    } else if hold != newest {
        return Some(format!("{} delivered, after {} had begun to", brief(hold), brief(newest)));
    }
    let left = hold.term < known.term;
    left.then(|| format!("{} delivered, after the row went on to term {}", brief(hold), known.term))
}
