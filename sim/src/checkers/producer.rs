//! Producer checkers: order, one outcome per record, and no record reported as placed that a reader
//! does not get.

use super::Violation;
use crate::ledger::{LedgerEntry, RecordName};
use anabranch::producer::Outcome;
use anabranch_model::sequence::SequenceNumber;
use std::collections::{BTreeMap, BTreeSet};

/// The guarantee of one outcome per record.
pub const ONE_OUTCOME: &str = "each record has one outcome";
/// The ordering guarantee.
pub const ORDER: &str = "first deliveries of a key are in put order";
/// The guarantee for placed records.
pub const PLACED: &str = "what is placed is delivered";
/// The guarantee for rejected records.
pub const REJECTED: &str = "what is rejected is not in the stream";
/// The guarantee for failed records.
pub const HOLES: &str = "a hole stops its key";

/// A record as it is stored, or as a reader that follows KCL's rules gets it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StoredRecord {
    /// Name of the record.
    pub name: RecordName,
    /// Shard that holds it.
    pub shard: String,
    /// Sequence number of the Kinesis record.
    pub sequence: SequenceNumber,
    /// Index inside an aggregate.
    pub sub: u64,
}

/// Contents of the stream at the end of a run.
#[derive(Clone, Debug, Default)]
pub struct StreamContents {
    /// Records that a reader gets, in its order.
    pub delivered: Vec<StoredRecord>,
    /// Records that are in the stream at all, including those in aggregates that readers drop.
    pub stored: BTreeSet<RecordName>,
}

/// Returns the first violation.
pub fn check(
    ledger: &BTreeMap<RecordName, LedgerEntry>,
    shown: &StreamContents,
    line: usize,
) -> Option<Violation> {
    let broken = outcomes(ledger)
        .or_else(|| order(&shown.delivered))
        .or_else(|| places(ledger, shown))
        .or_else(|| holes(ledger));
    broken.map(|(promise, words)| Violation { promise, words, line, lease: None })
}

type BrokenPromise = Option<(&'static str, String)>;

fn outcomes(ledger: &BTreeMap<RecordName, LedgerEntry>) -> BrokenPromise {
    let wrong = ledger.iter().find(|(_, entry)| match entry.outcomes.len() {
        0 => !entry.orphaned,
        1 => false,
        _ => true,
    });
    wrong.map(|(name, entry)| {
        let count = entry.outcomes.len();
        (ONE_OUTCOME, format!("{name:?} has {count}"))
    })
}

fn order(delivered: &[StoredRecord]) -> BrokenPromise {
    let mut newest: BTreeMap<&str, u64> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for found in delivered {
        if !seen.insert(&found.name) {
            continue;
        }
        let newest = newest.entry(&found.name.0).or_default();
        if found.name.1 < *newest {
            let words = format!("{:?} is first delivered behind {newest}", found.name);
            return Some((ORDER, words));
        }
        *newest = found.name.1;
    }
    None
}

fn places(ledger: &BTreeMap<RecordName, LedgerEntry>, shown: &StreamContents) -> BrokenPromise {
    let delivered: BTreeSet<&StoredRecord> = shown.delivered.iter().collect();
    for (name, entry) in ledger {
        match entry.outcomes.first() {
            Some(Outcome::Placed { shard, sequence, sub, .. }) => {
                let (shard, sequence, sub) = (shard.to_string(), *sequence, *sub);
                let place = StoredRecord { name: name.clone(), shard, sequence, sub };
                if !delivered.contains(&place) {
                    let words = format!("{place:?} is not what a reader gets there");
                    return Some((PLACED, words));
                }
            }
            Some(Outcome::Rejected { why, .. }) if shown.stored.contains(name) => {
                let words = format!("{name:?} is in the stream, and rejected: {why:?}");
                return Some((REJECTED, words));
            }
            _ => {}
        }
    }
    None
}

/// Checks that no record of a key is placed after a failed one, rejected or unknown.
fn holes(ledger: &BTreeMap<RecordName, LedgerEntry>) -> BrokenPromise {
    let mut hole: Option<&RecordName> = None;
    for (name, entry) in ledger {
        if hole.is_some_and(|hole| hole.0 != name.0) {
            hole = None;
        }
        match (hole, entry.outcomes.first()) {
            (Some(hole), Some(Outcome::Placed { .. })) => {
                let words = format!("{name:?} is placed behind {hole:?}, which is not");
                return Some((HOLES, words));
            }
            (None, Some(Outcome::Rejected { .. } | Outcome::Unknown { .. })) => hole = Some(name),
            _ => {}
        }
    }
    None
}
