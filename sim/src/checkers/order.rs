//! Order (G1): a record of a key is handed out for the first time when all before it are done.

use super::violation::{Violation, of_grain};
use crate::history::{Line, What};
use crate::supply::Grain;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The promise.
pub const PROMISE: &str = "each key's records come in the order of their puts";

/// What is known of one key.
#[derive(Default)]
struct Key {
    /// The records that were put and are neither done nor past retention.
    open: BTreeSet<u64>,
    /// The records that were handed out.
    handed: BTreeSet<u64>,
}

/// Whether every record was handed out after all that were put before it under its key were done.
pub fn check(lines: &[Line]) -> Option<Violation> {
    let mut keys: BTreeMap<Arc<str>, Key> = BTreeMap::new();
    // How many records of the same call are still to come, and which came. Inside of a call it is the
    // handler that keeps the order.
    let (mut to_come, mut together) = (0, BTreeSet::new());
    for (at, line) in lines.iter().enumerate() {
        match &line.what {
            What::Put(grain) => {
                keys.entry(Arc::clone(&grain.key)).or_default().open.insert(grain.number);
            }
            What::Trimmed => keys.values_mut().for_each(|key| key.open.clear()),
            What::Handled { grain, done: true, .. } | What::Skipped(grain) => {
                keys.entry(Arc::clone(&grain.key)).or_default().open.remove(&grain.number);
            }
            What::Called { records, .. } => (to_come, together) = (*records, BTreeSet::new()),
            What::Handed { hold, grain } => {
                let key = keys.entry(Arc::clone(&grain.key)).or_default();
                if let Some(words) = handed(key, grain, &together) {
                    return Some(of_grain(PROMISE, words, at, hold));
                }
                if to_come > 0 {
                    to_come -= 1;
                    together.insert((&*grain.key, grain.number));
                }
                if to_come == 0 {
                    together.clear();
                }
            }
            _ => {}
        }
    }
    None
}

fn handed(key: &mut Key, grain: &Grain, together: &BTreeSet<(&str, u64)>) -> Option<String> {
    if !key.handed.insert(grain.number) {
        return None;
    }
    let mut before = key.open.range(..grain.number);
    let before = before.find(|number| !together.contains(&(&*grain.key, **number)))?;
    Some(format!("{grain} came before {}#{before} was done", grain.key))
}
