//! Effects checker: a record that is handled in a transaction has its effect once.

use super::violation::{Violation, of_grain};
use crate::history::{HistoryEvent, HistoryLine};
use anabranch_model::lease::LeaseKey;
use anabranch_model::position::Position;
use std::collections::BTreeSet;

/// The guarantee this checker verifies.
pub const PROMISE: &str = "each record has its effect once";

/// Checks that no record had its effect twice. The delivery checker verifies that each has it at
/// all.
pub fn check(lines: &[HistoryLine]) -> Option<Violation> {
    let mut effects: BTreeSet<(&LeaseKey, Position)> = BTreeSet::new();
    lines.iter().enumerate().find_map(|(at, line)| match &line.what {
        HistoryEvent::Handled { hold, grain, done: true }
            if !effects.insert((&grain.shard, grain.at)) =>
        {
            Some(of_grain(PROMISE, format!("{grain} had its effect twice"), at, hold))
        }
        _ => None,
    })
}
