//! The oracle: what was accepted against what was delivered.

use super::produce::Item;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What the comparison found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    put: usize,
    delivered: usize,
    lost: usize,
    out_of_order: usize,
    duplicates: usize,
    reshards: usize,
}

impl Verdict {
    /// Compares. Only first deliveries count for order; a second one is a duplicate.
    pub(super) fn of(accepted: &[Item], delivered: &[Item], reshards: usize) -> Self {
        let mut seen = BTreeSet::new();
        let mut newest: BTreeMap<u32, u64> = BTreeMap::new();
        let mut out_of_order = 0;
        for item in delivered {
            if seen.insert(*item) {
                let newest = newest.entry(item.key).or_insert(item.number);
                out_of_order += usize::from(item.number < *newest);
                *newest = item.number.max(*newest);
            }
        }
        Self {
            put: accepted.len(),
            delivered: seen.len(),
            lost: accepted.iter().filter(|item| !seen.contains(item)).count(),
            out_of_order,
            duplicates: delivered.len() - seen.len(),
            reshards,
        }
    }

    /// Whether every accepted record came, and each key in its order.
    pub(super) fn holds(&self) -> bool {
        self.lost == 0 && self.out_of_order == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("records put", self.put),
            ("delivered", self.delivered),
            ("lost", self.lost),
            ("out of order", self.out_of_order),
            ("duplicates", self.duplicates),
            ("reshards", self.reshards),
        ];
        for (what, count) in rows {
            writeln!(f, "{what:<14}{count:>9}")?;
        }
        let word = if self.holds() { "every key in order, nothing lost" } else { "BROKEN" };
        write!(f, "verdict: {word}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(accepted: &[(u32, u64)], delivered: &[(u32, u64)], expected: [usize; 3], holds: bool) {
        let items = |list: &[(u32, u64)]| -> Vec<Item> {
            list.iter().map(|(key, number)| Item { key: *key, number: *number }).collect()
        };
        let verdict = Verdict::of(&items(accepted), &items(delivered), 0);
        let found = [verdict.lost, verdict.out_of_order, verdict.duplicates];
        assert_eq!(found, expected, "{accepted:?} against {delivered:?}");
        assert_eq!(verdict.holds(), holds);
    }

    #[test]
    fn losses_inversions_and_duplicates_are_told_apart() {
        let put = [(1, 0), (2, 0), (1, 1), (1, 2)];
        check(&put, &put, [0, 0, 0], true);
        check(&put, &[(2, 0), (1, 0), (1, 1), (1, 2)], [0, 0, 0], true);
        check(&put, &[(1, 0), (1, 1), (1, 2)], [1, 0, 0], false);
        check(&put, &[(1, 0), (2, 0), (1, 2), (1, 1)], [0, 1, 0], false);
        check(&put, &[(1, 0), (1, 1), (1, 0), (1, 1), (1, 2), (2, 0)], [0, 0, 2], true);
    }
}
