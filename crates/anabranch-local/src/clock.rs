//! Time and randomness. The engine takes both from this module only.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// The engine's source of time. Clones share one clock.
#[derive(Clone)]
pub struct Clock(ClockSource);

#[derive(Clone)]
enum ClockSource {
    /// The machine's wall clock, and the latest time it has shown. If the clock is set back, a
    /// state that has ended must not return.
    System(Arc<AtomicU64>),
    /// A clock that is moved by hand. The channel wakes the tasks that wait on it.
    Manual(watch::Sender<u64>),
}

impl Clock {
    /// Returns the machine's wall clock.
    pub fn system() -> Self {
        Self(ClockSource::System(Arc::default()))
    }

    /// Returns a manual clock that shows `start_ms`, in milliseconds since 1970, until it is moved.
    pub fn manual(start_ms: u64) -> Self {
        Self(ClockSource::Manual(watch::Sender::new(start_ms)))
    }

    /// Returns the time in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        match &self.0 {
            ClockSource::System(latest) => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let now = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
                now.max(latest.fetch_max(now, Ordering::Relaxed))
            }
            ClockSource::Manual(now) => *now.borrow(),
        }
    }

    /// Returns true for a manual clock.
    pub fn is_manual(&self) -> bool {
        matches!(self.0, ClockSource::Manual(_))
    }

    /// Moves a manual clock forward. Returns `false` and does nothing on the system clock.
    pub fn advance(&self, by_ms: u64) -> bool {
        match &self.0 {
            ClockSource::System(_) => false,
            ClockSource::Manual(now) => {
                now.send_modify(|ms| *ms = ms.saturating_add(by_ms));
                true
            }
        }
    }

    /// Raises the clock to at least `ms`, so that no time already recorded by the engine lies in
    /// the future.
    pub(crate) fn not_before(&self, ms: u64) {
        match &self.0 {
            ClockSource::System(latest) => {
                latest.fetch_max(ms, Ordering::Relaxed);
            }
            ClockSource::Manual(now) => now.send_modify(|now| *now = ms.max(*now)),
        }
    }

    /// Waits until the clock shows `deadline_ms`, in milliseconds since 1970.
    pub async fn sleep_until(&self, deadline_ms: u64) {
        match &self.0 {
            ClockSource::System(_) => {
                let wait = deadline_ms.saturating_sub(self.now_ms());
                tokio::time::sleep(Duration::from_millis(wait)).await;
            }
            ClockSource::Manual(now) => {
                // The sender is in `self`, so the channel cannot close during the wait.
                let _ = now.subscribe().wait_for(|ms| *ms >= deadline_ms).await;
            }
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_manual() { "manual" } else { "system" };
        write!(f, "Clock({kind}, {} ms)", self.now_ms())
    }
}

/// Returns a random number that identifies one run of an engine. It is only compared for equality.
pub(crate) fn run_id() -> u64 {
    fastrand::u64(..)
}

/// A seeded random number generator. Equal seeds give equal sequences.
#[derive(Debug)]
pub struct Rng(fastrand::Rng);

impl Rng {
    /// Creates a generator from a seed.
    pub fn seeded(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Returns `true` with the given probability: never at 0, always at 1.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.0.f64() < probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_follows_a_manual_clock() {
        let clock = Clock::manual(1_000);
        let wait = clock.sleep_until(1_500);
        tokio::pin!(wait);
        assert!(tokio::time::timeout(Duration::from_millis(5), &mut wait).await.is_err());
        clock.advance(500);
        wait.await;
        assert_eq!(clock.now_ms(), 1_500);
    }

    #[test]
    fn no_clock_goes_back() {
        for clock in [Clock::system(), Clock::manual(1_000)] {
            let later = clock.now_ms() + 3_600_000;
            clock.not_before(later);
            assert!(clock.now_ms() >= later);
            clock.not_before(1);
            assert!(clock.now_ms() >= later);
        }
    }

    #[test]
    fn dice_never_fall_at_zero_and_always_at_one() {
        let mut dice = Rng::seeded(7);
        assert!((0..1_000).all(|_| !dice.chance(0.0) && dice.chance(1.0)));
    }
}
