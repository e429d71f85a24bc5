//! World time, which no host can read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Milliseconds since the world began. Clones share one clock.
#[derive(Clone, Debug, Default)]
pub struct WorldClock(Arc<AtomicU64>);

impl WorldClock {
    /// Returns the current time, in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Advances the clock. Only the world calls it.
    pub(crate) fn advance(&self, by_ms: u64) {
        self.0.fetch_add(by_ms, Ordering::Relaxed);
    }
}
