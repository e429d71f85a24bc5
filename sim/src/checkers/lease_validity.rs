//! Tenure, in KCL's layout: who delivers a shard has written to its row within the lease time.
//!
//! There a worker of Java can steal a lease from an owner that renews it, and the owner learns of it
//! by its next write: until then two deliver. What holds beside Java too is that nobody delivers for
//! longer than a lease time on the strength of one write, by its own clock, and that checkpoints are fenced.

use super::pauses::HostPauses;
use super::violation::Violation;
use crate::history::{HistoryEvent, HistoryLine, brief};

/// The promise.
pub const PROMISE: &str = "who delivers a shard wrote to its row within the lease time";

/// Whether every delivery came within the lease time that its owner's id names, or else `lease_time_ms`,
/// after a write of its owner's that was applied.
pub fn check(lines: &[HistoryLine], lease_time_ms: u64) -> Option<Violation> {
    let mut pauses = HostPauses::default();
    for (at, line) in lines.iter().enumerate() {
        pauses.see(line);
        let (HistoryEvent::Delivered { hold, .. } | HistoryEvent::Handed { hold, .. }) = &line.what
        else {
            continue;
        };
        let last_ms = pauses.wrote_ms(hold);
        let ago_ms = |last_ms| pauses.seen_ms(line.host, last_ms, line.at_ms);
        let lease_time_ms = hold.owner.kcl_lease_time_ms().unwrap_or(lease_time_ms);
        if last_ms.is_none_or(|last_ms| ago_ms(last_ms) >= lease_time_ms) {
            let last = last_ms.map_or("never".to_owned(), |ms| format!("at {ms} ms"));
            let words = format!("{} delivered, and wrote {last}", brief(hold));
            let lease = Some(hold.key.clone());
            return Some(Violation { promise: PROMISE, words, line: at, lease });
        }
    }
    None
}
