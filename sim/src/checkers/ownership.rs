//! Ownership: two workers never deliver one shard at once, nor one worker under two terms.

use super::violation::Violation;
use crate::history::{Line, What, brief};
use anabranch_model::lease::{Hold, LeaseKey};
use std::collections::BTreeMap;

/// The promise.
pub const PROMISE: &str = "one worker at a time delivers a shard";

/// Whether deliveries under one hold end before those under the next begin.
pub fn check(lines: &[Line]) -> Option<Violation> {
    let mut newest: BTreeMap<&LeaseKey, &Hold> = BTreeMap::new();
    for (at, line) in lines.iter().enumerate() {
        let (What::Delivered { hold, .. } | What::Handed { hold, .. }) = &line.what else {
            continue;
        };
        let newest = newest.entry(&hold.key).or_insert(hold);
        if hold.term > newest.term {
            *newest = hold;
        } else if hold != *newest {
            let words = format!("{} delivered, after {} had begun to", brief(hold), brief(newest));
            let lease = Some(hold.key.clone());
            return Some(Violation { promise: PROMISE, words, line: at, lease });
        }
    }
    None
}
