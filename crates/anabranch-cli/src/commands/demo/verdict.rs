//! Verdict of the demo: compares accepted with delivered records.

use super::deliveries::DeliveryLogEntry;
use super::produce::DemoRecord;
use super::scenario::ScriptReport;
use crate::time_spec;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Result of the comparison.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DemoVerdict {
    put: usize,
    /// Number of records that were refused or have an unknown outcome.
    failed: usize,
    delivered: usize,
    lost: usize,
    out_of_order: usize,
    /// Number of duplicates from a worker that was killed or starved.
    repeated: usize,
    /// Number of duplicates without such a reason.
    duplicates: usize,
    told: ScriptReport,
}

impl DemoVerdict {
    /// Compares the logs. Only first deliveries count for order. A later one is a duplicate,
    /// excused only by a crash of the worker that delivered first.
    pub(super) fn of(
        accepted: &[DemoRecord],
        failed: usize,
        log: &[DeliveryLogEntry],
        told: &ScriptReport,
    ) -> Self {
        let crashed: BTreeSet<&str> = log
            .iter()
            .filter_map(|entry| match entry {
                DeliveryLogEntry::Evicted { worker } => Some(worker.as_str()),
                DeliveryLogEntry::Delivered { .. } => None,
            })
            .chain(told.killed.as_deref())
            .collect();
        let mut first: BTreeMap<DemoRecord, &str> = BTreeMap::new();
        let mut newest: BTreeMap<u32, u64> = BTreeMap::new();
        let (mut out_of_order, mut repeated, mut duplicates) = (0, 0, 0);
        for entry in log {
            let DeliveryLogEntry::Delivered { worker, item, .. } = entry else { continue };
            match first.get(item) {
                Some(before) if crashed.contains(before) => repeated += 1,
                Some(_) => duplicates += 1,
                None => {
                    first.insert(*item, worker);
                    let newest = newest.entry(item.key).or_insert(item.number);
                    out_of_order += usize::from(item.number < *newest);
                    *newest = item.number.max(*newest);
                }
            }
        }
        Self {
            put: accepted.len(),
            failed,
            delivered: first.len(),
            lost: accepted.iter().filter(|item| !first.contains_key(item)).count(),
            out_of_order,
            repeated,
            duplicates,
            told: told.clone(),
        }
    }

    /// Returns true if every accepted record was delivered, in order for each key, and there are no
    /// duplicates without a crash.
    pub(super) fn holds(&self) -> bool {
        self.failed == 0 && self.lost == 0 && self.out_of_order == 0 && self.duplicates == 0
    }
}

impl fmt::Display for DemoVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("records put", self.put),
            ("not put", self.failed),
            ("delivered", self.delivered),
            ("lost", self.lost),
            ("out of order", self.out_of_order),
            ("duplicates without a crash", self.duplicates),
            ("duplicates after the kill", self.repeated),
            ("splits and merges", self.told.reshards),
        ];
        for (what, count) in rows {
            writeln!(f, "{what:<28}{count:>9}")?;
        }
        let times = [
            ("hand-over after the stop", self.told.after_stop_ms),
            ("takeover after the kill", self.told.after_kill_ms),
        ];
        for (what, ms) in times {
            let ms = ms.map_or_else(|| "not seen".to_owned(), time_spec::span);
            writeln!(f, "{what:<28}{ms:>9}")?;
        }
        let word = if self.holds() { "every key in order, nothing lost" } else { "BROKEN" };
        write!(f, "verdict: {word}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(list: &[(u32, u64)]) -> Vec<DemoRecord> {
        list.iter().map(|(key, number)| DemoRecord { key: *key, number: *number }).collect()
    }

    fn check(
        accepted: &[(u32, u64)],
        delivered: &[(&str, u32, u64)],
        expected: [usize; 4],
        holds: bool,
    ) {
        let log: Vec<DeliveryLogEntry> = delivered
            .iter()
            .map(|(worker, key, number)| DeliveryLogEntry::Delivered {
                worker: (*worker).to_owned(),
                at_ms: 0,
                shard: "shardId-000000000000".into(),
                item: DemoRecord { key: *key, number: *number },
            })
            .collect();
        let told = ScriptReport { killed: Some("dead".to_owned()), ..ScriptReport::default() };
        let verdict = DemoVerdict::of(&items(accepted), 0, &log, &told);
        let found = [verdict.lost, verdict.out_of_order, verdict.duplicates, verdict.repeated];
        assert_eq!(found, expected, "{accepted:?} against {delivered:?}");
        assert_eq!(verdict.holds(), holds, "{verdict}");
    }

    #[test]
    fn losses_inversions_and_duplicates_are_told_apart() {
        let put = [(1, 0), (2, 0), (1, 1), (1, 2)];
        let (a, b, c, d) = (("w", 1, 0), ("w", 2, 0), ("w", 1, 1), ("w", 1, 2));
        check(&put, &[a, b, c, d], [0, 0, 0, 0], true);
        check(&put, &[b, a, c, d], [0, 0, 0, 0], true);
        check(&put, &[a, c, d], [1, 0, 0, 0], false);
        check(&put, &[a, b, d, c], [0, 1, 0, 0], false);
        // Only deliveries of the killed worker may be repeated.
        check(&put, &[("dead", 1, 0), a, b, c, d], [0, 0, 0, 1], true);
        check(&put, &[a, ("dead", 1, 0), b, c, d], [0, 0, 1, 0], false);
    }
}
