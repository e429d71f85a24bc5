//! Coverage of the hash key space by a set of hash ranges.

use crate::hash::{HashKey, HashRange};

/// Returns the holes in the hash key space that none of `ranges` covers, lowest first.
///
/// The ranges may be in any order and may overlap.
pub fn holes(ranges: impl IntoIterator<Item = HashRange>) -> Vec<HashRange> {
    let mut ranges: Vec<_> = ranges.into_iter().collect();
    ranges.sort_unstable();
    let mut holes = Vec::new();
    // The lowest key not yet known to be covered; `None` once the highest key is.
    let mut uncovered = Some(HashKey::MIN);
    for range in ranges {
        let Some(from) = uncovered else { break };
        if range.start() > from {
            holes.extend(HashRange::new(from, HashKey(range.start().0 - 1)));
        }
        uncovered = range.end().0.checked_add(1).map(|next| HashKey(next).max(from));
    }
    holes.extend(uncovered.and_then(|from| HashRange::new(from, HashKey::MAX)));
    holes
}

/// Counts consecutive audits that found the same hole.
///
/// A reshard in progress shows a hole for a moment, so a single audit is no reason to repair.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HoleDetector {
    /// Hole of the last audit.
    hole: Option<HashRange>,
    /// Consecutive audits that found this hole.
    looks: u32,
}

impl HoleDetector {
    /// Records the holes of an audit; only the lowest one counts. Returns the number of consecutive
    /// audits that found it: 0 without a hole, 1 for a new one.
    pub fn observe(&mut self, holes: &[HashRange]) -> u32 {
        let hole = holes.first().copied();
        self.looks = match hole {
            None => 0,
            Some(_) if hole == self.hole => self.looks.saturating_add(1),
            Some(_) => 1,
        };
        self.hole = hole;
        self.looks
    }

    /// Returns the number of consecutive audits that found the hole of the last audit, or `None` if
    /// it found none.
    pub fn consecutive(&self) -> Option<u32> {
        self.hole.map(|_| self.looks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: u128 = u128::MAX;

    fn range((start, end): (u128, u128)) -> HashRange {
        HashRange::new(HashKey(start), HashKey(end)).unwrap()
    }

    fn check(ranges: &[(u128, u128)], expected: &[(u128, u128)]) {
        let got = holes(ranges.iter().copied().map(range));
        let expected: Vec<_> = expected.iter().copied().map(range).collect();
        assert_eq!(got, expected, "holes in {ranges:?}");
    }

    #[test]
    fn what_no_range_covers_is_a_hole() {
        check(&[], &[(0, MAX)]);
        check(&[(0, MAX)], &[]);
        check(&[(0, 9), (10, MAX)], &[]);
        check(&[(10, MAX), (0, 9)], &[]);
        check(&[(1, MAX)], &[(0, 0)]);
        check(&[(0, MAX - 1)], &[(MAX, MAX)]);
        check(&[(0, 9), (11, MAX)], &[(10, 10)]);
        check(&[(0, 9), (20, 29), (40, 49)], &[(10, 19), (30, 39), (50, MAX)]);
        // One-key ranges at both ends.
        check(&[(0, 0), (MAX, MAX)], &[(1, MAX - 1)]);
    }

    #[test]
    fn overlaps_are_no_holes() {
        check(&[(0, 100), (10, 20), (30, MAX)], &[]);
        check(&[(0, 100), (0, 50), (101, MAX)], &[]);
        check(&[(0, MAX), (5, 9)], &[]);
        check(&[(0, 100), (10, 20), (102, MAX)], &[(101, 101)]);
    }

    #[test]
    fn a_hole_that_moves_is_counted_anew() {
        let (a, b) = (range((0, 9)), range((10, 19)));
        let mut watch = HoleDetector::default();
        let looks: [(&[HashRange], u32); 9] = [
            (&[], 0),
            (&[a], 1),
            (&[a, b], 2),
            (&[a], 3),
            (&[b], 1),
            (&[b], 2),
            (&[], 0),
            (&[b], 1),
            (&[a], 1),
        ];
        for (i, (holes, expected)) in looks.into_iter().enumerate() {
            assert_eq!(watch.observe(holes), expected, "look {i}");
        }
    }

    proptest! {
        /// Small numbers represent the whole space: every key is covered or in exactly one hole.
        #[test]
        fn every_key_is_covered_or_in_one_hole(ends in prop::collection::vec((0u128..40, 0u128..40), 0..12)) {
            let ranges: Vec<_> = ends.iter().map(|(a, b)| range((*a.min(b), *a.max(b)))).collect();
            let holes = holes(ranges.iter().copied());
            for key in (0..45).map(HashKey) {
                let covered = ranges.iter().any(|range| range.contains(key));
                let in_holes = holes.iter().filter(|hole| hole.contains(key)).count();
                prop_assert_eq!(in_holes, usize::from(!covered), "{}", key);
            }
        }
    }
}
