//! Memory checker (G5): a worker never holds more bytes of records than its budget, plus one record
//! for each shard's own share.

use super::violation::Violation;
use crate::history::{HistoryEvent, HistoryLine};

/// The guarantee this checker verifies.
pub const PROMISE: &str = "a worker holds no more bytes of records than it may";

/// Checks that no worker held more bytes than allowed.
pub fn check(lines: &[HistoryLine]) -> Option<Violation> {
    lines.iter().enumerate().find_map(|(at, line)| match &line.what {
        HistoryEvent::Holds { bytes, most } if bytes > most => Some(Violation {
            promise: PROMISE,
            words: format!("{bytes} bytes are held; {most} may be"),
            line: at,
            lease: None,
        }),
        _ => None,
    })
}
