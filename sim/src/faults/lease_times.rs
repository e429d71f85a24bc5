//! Lease times that differ between worker runs, as during the rollout of a changed setting.

use fastrand::Rng;

/// Lease times of a fleet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseTimes {
    /// Shortest lease time, in milliseconds.
    base_ms: u64,
    /// Ratio of the longest lease time to the shortest.
    most: u64,
}

impl LeaseTimes {
    /// Uses the same lease time for all runs.
    pub fn same(base_ms: u64) -> Self {
        Self { base_ms, most: 1 }
    }

    /// Draws whether and how much lease times differ. Uses its own RNG, so that the rest of the
    /// seed is unchanged.
    pub fn drawn(seed: u64, base_ms: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x6c65_6173_6574_696d);
        let most = if rng.u32(0..3) == 0 { rng.u64(2..=6) } else { 1 };
        Self { base_ms, most }
    }

    /// Returns the lease time of the worker run with this seed, in milliseconds.
    pub fn of_life(self, seed: u64) -> u64 {
        self.base_ms * Rng::with_seed(seed ^ 0x6c69_6665).u64(1..=self.most)
    }

    /// Returns the longest lease time that a run may draw, in milliseconds.
    pub fn longest_ms(self) -> u64 {
        self.base_ms * self.most
    }
}
