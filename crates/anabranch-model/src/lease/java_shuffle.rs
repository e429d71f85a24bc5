//! Java's shuffle, and the leader that KCL 2.x elects with it.
//!
//! KCL 2.x uses no lock for its leader. Each worker lists the lease owners, sorts them, shuffles
//! them with a fixed seed and takes the first. A worker that joins such a fleet must find the same
//! leader, so the generator and the shuffle are those of `java.util`.

use std::collections::BTreeSet;

/// Seed with which every KCL 2.x worker shuffles the owners.
const LEADER_SEED: u64 = 1947;

/// `java.util.Random`: a 48-bit linear congruential generator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JavaRandom {
    /// State, in the low 48 bits.
    state: u64,
}

impl JavaRandom {
    const MULTIPLIER: u64 = 0x5_DEEC_E66D;
    const INCREMENT: u64 = 0xB;
    const MASK: u64 = (1 << 48) - 1;

    /// Creates the generator of `new Random(seed)`. The upper 16 bits of the seed have no effect.
    pub fn new(seed: u64) -> Self {
        Self { state: (seed ^ Self::MULTIPLIER) & Self::MASK }
    }

    /// Returns the next 31 bits.
    fn next_31(&mut self) -> u32 {
        self.state =
            (self.state.wrapping_mul(Self::MULTIPLIER).wrapping_add(Self::INCREMENT)) & Self::MASK;
        ((self.state >> 17) & 0x7FFF_FFFF) as u32
    }

    /// Returns a number below `bound`, as `nextInt(bound)` does. The bound must be in
    /// `1..=i32::MAX`.
    pub fn below(&mut self, bound: u32) -> u32 {
        debug_assert!(bound > 0 && bound <= i32::MAX.unsigned_abs(), "Java refuses this bound");
        if bound.is_power_of_two() {
            // The product is below bound * 2^31, so the mask drops nothing.
            return (((u64::from(bound) * u64::from(self.next_31())) >> 31) & 0x7FFF_FFFF) as u32;
        }
        loop {
            let bits = self.next_31();
            let value = bits % bound;
            // A value in the last, incomplete run of `bound` numbers below 2^31 is drawn again.
            // Java detects it by the overflow of an `int`.
            if bits - value + (bound - 1) < 1 << 31 {
                return value;
            }
        }
    }

    /// Shuffles `list` as `Collections.shuffle(list, random)` does.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for end in (2..=list.len()).rev() {
            // No list in Java is longer than an `int` can count.
            let bound = u32::try_from(end).unwrap_or(u32::MAX).min(i32::MAX.unsigned_abs());
            list.swap(end - 1, self.below(bound) as usize);
        }
    }
}

/// Returns the leader that a KCL 2.x worker elects from the owners in a scan of the lease table.
/// Returns `None` without an owner: then every worker considers itself the leader.
pub fn leader<'a>(owners: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distinct: BTreeSet<&str> = owners.into_iter().collect();
    let mut order: Vec<&str> = distinct.into_iter().collect();
    // Java compares UTF-16 units, which differs from the order of characters above U+FFFF.
    order.sort_by(|a, b| a.encode_utf16().cmp(b.encode_utf16()));
    JavaRandom::new(LEADER_SEED).shuffle(&mut order);
    order.first().copied()
}

/// Returns true if the worker `me` leads, by KCL 2.x's rule.
pub fn leads<'a>(me: &str, owners: impl IntoIterator<Item = &'a str>) -> bool {
    leader(owners).is_none_or(|leader| leader == me)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permutation(n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        JavaRandom::new(LEADER_SEED).shuffle(&mut order);
        order
    }

    #[test]
    fn the_leader_of_n_sorted_owners_is_the_one_that_java_finds() {
        for (n, expected) in [
            (1, 0),
            (2, 0),
            (3, 2),
            (4, 3),
            (5, 4),
            (6, 2),
            (7, 2),
            (8, 2),
            (9, 3),
            (10, 8),
            (11, 6),
            (12, 9),
            (20, 14),
            (50, 47),
            (100, 95),
            (1000, 748),
        ] {
            let owners: Vec<String> = (0..n).map(|i| format!("worker-{i:04}")).collect();
            // Every owner has two leases, and the scan has its own order.
            let scan = owners.iter().rev().chain(&owners).map(String::as_str);
            assert_eq!(leader(scan), Some(owners[expected].as_str()), "{n} owners");
        }
    }

    #[test]
    fn a_shuffle_is_javas() {
        assert_eq!(permutation(5), [4, 0, 2, 1, 3]);
        assert_eq!(permutation(8), [2, 3, 0, 6, 4, 7, 1, 5]);
        assert_eq!(permutation(12), [9, 4, 8, 2, 0, 11, 6, 10, 1, 5, 3, 7]);
        assert_eq!(permutation(0), [0; 0]);
    }

    #[test]
    fn a_generator_is_javas() {
        // The first numbers of `new Random(42)`: `nextInt(10)` gives 0, 3, 8; then a power of two.
        let mut random = JavaRandom::new(42);
        assert_eq!([random.below(10), random.below(10), random.below(10)], [0, 3, 8]);
        // A bound just above 2^30 draws again about every second time, and stays below it.
        let bound = (1 << 30) + 1;
        assert!((0..1000).all(|_| random.below(bound) < bound));
    }

    #[test]
    fn owners_are_sorted_by_utf_16_units() {
        // U+FF5E sorts before U+1F600 by character and after it by unit (0xD83D < 0xFF5E). Of three
        // sorted owners Java elects the third.
        assert_eq!(leader(["a", "\u{ff5e}", "\u{1f600}"]), Some("\u{ff5e}"));
    }

    #[test]
    fn without_owners_everyone_leads() {
        assert!(leads("me", []));
        assert!(leads("me", ["me", "me"]));
        assert!(!leads("me", ["other"]));
    }
}
