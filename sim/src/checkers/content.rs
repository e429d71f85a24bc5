//! Content checker: each record arrives as it was put, under a lease that its worker took.

use super::violation::Violation;
use crate::history::{HistoryEvent, HistoryLine};

/// The guarantee this checker verifies.
pub const PROMISE: &str = "each record comes as it was put";

/// Checks that no handler received a record that was never put.
pub fn check(lines: &[HistoryLine]) -> Option<Violation> {
    lines.iter().enumerate().find_map(|(at, line)| match &line.what {
        HistoryEvent::Corrupted { lease, words } => Some(Violation {
            promise: PROMISE,
            words: format!("{words} of {lease}"),
            line: at,
            lease: Some(lease.clone()),
        }),
        _ => None,
    })
}
