//! Lease times that differ from life to life, as while a change of the setting is rolled out.

use fastrand::Rng;

/// The lease times of a fleet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseTimes {
    /// The shortest, in milliseconds.
    base_ms: u64,
    /// How many times longer the longest is.
    most: u64,
}

impl LeaseTimes {
    /// The same lease time for all.
    pub fn same(base_ms: u64) -> Self {
        Self { base_ms, most: 1 }
    }

    /// Draws whether lease times differ, and how much. Drawn apart, so that the rest of the seed is
    /// what it is without.
    pub fn drawn(seed: u64, base_ms: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x6c65_6173_6574_696d);
        let most = if rng.u32(0..3) == 0 { rng.u64(2..=6) } else { 1 };
        Self { base_ms, most }
    }

    /// The lease time of the life with this seed.
    pub fn of_life(self, seed: u64) -> u64 {
        self.base_ms * Rng::with_seed(seed ^ 0x6c69_6665).u64(1..=self.most)
    }

    /// The longest that a life may draw.
    pub fn longest_ms(self) -> u64 {
        self.base_ms * self.most
    }
}
