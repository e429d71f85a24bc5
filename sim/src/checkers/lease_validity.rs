//! Lease validity checker for KCL's layout: a worker that delivers a shard has written to its row
//! within the lease time.
//!
//! In this layout a Java worker can steal a lease from an owner that renews it. The owner learns of
//! it by its next write; until then both deliver. Two guarantees hold even beside Java workers:
//!
//! - No worker delivers for longer than a lease time after its last write, by its own clock.
//! - Checkpoints are fenced.

use super::pauses::HostPauses;
use super::violation::Violation;
use crate::history::{HistoryEvent, HistoryLine, brief};

/// The guarantee this checker verifies.
pub const PROMISE: &str = "who delivers a shard wrote to its row within the lease time";

/// Checks that every delivery came within the lease time after an applied write of its owner. The
/// lease time is the one named in the owner's id, or else `lease_time_ms`.
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
