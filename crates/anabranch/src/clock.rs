//! Clock and random numbers. Time and randomness enter the library only here.

use anabranch_model::lease::Nonce;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Maximum length of a single tokio sleep. Tokio's timer stops while the machine is suspended.
const NAP: Duration = Duration::from_secs(1);

/// Source of the current time. Clones share one clock.
#[derive(Clone)]
pub struct Clock(ClockSource);

#[derive(Clone, Copy)]
enum ClockSource {
    /// The machine's clock, which continues during suspend.
    Machine,
    /// Tokio's clock, counted from this instant. Tests and the simulator can pause and advance it.
    Tokio(tokio::time::Instant),
}

impl Clock {
    /// Returns the machine's clock. It continues during suspend, because a worker that was
    /// suspended for longer than its lease time must see on wake-up that the time has passed.
    pub fn machine() -> Self {
        Self(ClockSource::Machine)
    }

    /// Returns tokio's clock, which tests can pause. Must be called inside the runtime.
    pub fn of_runtime() -> Self {
        Self(ClockSource::Tokio(tokio::time::Instant::now()))
    }

    /// Returns the milliseconds since an arbitrary moment in the past. Never goes back.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        let since = match self.0 {
            ClockSource::Machine => since_boot(),
            ClockSource::Tokio(start) => start.elapsed(),
        };
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the milliseconds since 1970, or since its creation for [`Clock::of_runtime`].
    ///
    /// Only for operators to read: no decision depends on it.
    pub fn wall_ms(&self) -> u64 {
        let since = match self.0 {
            ClockSource::Machine => {
                SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
            }
            ClockSource::Tokio(start) => start.elapsed(),
        };
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Waits until [`Clock::now_ms`] reaches `deadline_ms`.
    pub async fn sleep_until(&self, deadline_ms: u64) {
        loop {
            let left = Duration::from_millis(deadline_ms.saturating_sub(self.now_ms()));
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(match self.0 {
                ClockSource::Machine => left.min(tick_wait(self.now_ms())),
                ClockSource::Tokio(_) => left,
            })
            .await;
        }
    }

    /// Waits for `ms` milliseconds.
    pub async fn sleep(&self, ms: u64) {
        self.sleep_until(self.now_ms().saturating_add(ms)).await;
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if matches!(self.0, ClockSource::Machine) { "machine" } else { "runtime" };
        write!(f, "Clock({kind}, {} ms)", self.now_ms())
    }
}

/// Returns the length of a sleep that begins now. It ends at a multiple of [`NAP`], so that all
/// long sleepers wake together and the machine wakes only once for them.
fn tick_wait(now_ms: u64) -> Duration {
    let whole_ms = u64::try_from(NAP.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(whole_ms - now_ms % whole_ms)
}

#[cfg(target_os = "linux")]
#[inline]
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Apple's monotonic clock includes suspend. The clock behind the standard library's `Instant` does
/// not.
#[cfg(target_vendor = "apple")]
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Other systems use the monotonic clock, whether or not it includes suspend.
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn since_boot() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

/// Random number generator. Clones share one sequence.
#[derive(Clone, Debug)]
pub struct Rng(Arc<Mutex<fastrand::Rng>>);

impl Rng {
    /// Creates an unpredictable generator, seeded by the operating system.
    pub fn of_system() -> Self {
        // The hasher's keys come from the operating system, so two hosts do not share a seed.
        Self::seeded(RandomState::new().hash_one(SystemTime::now()))
    }

    /// Creates a generator that yields the same sequence for the same seed.
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))))
    }

    /// Returns 64 random bits.
    pub fn bits(&self) -> u64 {
        self.draw(|rng| rng.u64(..))
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.draw(|rng| rng.u64(..bound)) }
    }

    /// Returns a nonce that identifies one write.
    pub fn nonce(&self) -> Nonce {
        Nonce(self.bits())
    }

    fn draw<T>(&self, from: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        // The generator has no state that a panic could leave half changed.
        from(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_runtime_clock_follows_paused_time() {
        let clock = Clock::of_runtime();
        assert_eq!(clock.now_ms(), 0);
        clock.sleep(90_000).await;
        assert_eq!(clock.now_ms(), 90_000);
        clock.sleep_until(5).await;
        assert_eq!(clock.now_ms(), 90_000, "a deadline that has passed is not waited for");
    }

    #[tokio::test]
    async fn a_machine_clock_sleeps_until_its_own_time_has_come() {
        let clock = Clock::machine();
        let start = clock.now_ms();
        clock.sleep(20).await;
        assert!(clock.now_ms() >= start + 20);
    }

    #[test]
    fn a_seed_gives_its_numbers_again_and_the_system_never_does() {
        let draw = |chance: &Rng| (chance.bits(), chance.nonce(), chance.below(10));
        assert_eq!(draw(&Rng::seeded(7)), draw(&Rng::seeded(7)));
        assert_ne!(Rng::of_system().bits(), Rng::of_system().bits());
        assert_eq!(Rng::seeded(1).below(0), 0);
    }
}
