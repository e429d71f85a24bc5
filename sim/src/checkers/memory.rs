//! Memory (G5): a worker never holds more bytes of records than its budget, but for one record of
//! each shard's own share.

use super::violation::Violation;
use crate::history::{HistoryEvent, HistoryLine};

/// The promise.
pub const PROMISE: &str = "a worker holds no more bytes of records than it may";

/// Whether no worker held too much.
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
