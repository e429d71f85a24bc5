//! Time and chance: the only place where either enters the library.

use anabranch_model::lease::Nonce;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest that a sleep trusts tokio's timer, which stands still while the machine is
/// suspended.
const NAP: Duration = Duration::from_secs(1);

/// Where the library reads the time. Clones share one clock.
#[derive(Clone)]
pub struct Clock(ClockSource);

#[derive(Clone, Copy)]
enum ClockSource {
    /// The machine's clock, suspend included.
    Machine,
    /// Tokio's clock, counted from this moment: what tests and the simulator pause and move.
    Tokio(tokio::time::Instant),
}

impl Clock {
    /// The machine's clock. It goes on while the machine is suspended, because a worker that sleeps
    /// through its lease time must find it over when it wakes.
    pub fn machine() -> Self {
        Self(ClockSource::Machine)
    }

    /// Tokio's clock, which a test can pause. Call it inside the runtime.
    pub fn of_runtime() -> Self {
        Self(ClockSource::Tokio(tokio::time::Instant::now()))
    }

    /// Milliseconds since some moment in the past. Never goes back.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        let since = match self.0 {
            ClockSource::Machine => since_boot(),
            ClockSource::Tokio(start) => start.elapsed(),
        };
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Milliseconds since 1970, for operators to read. No decision rests on it.
    pub fn wall_ms(&self) -> u64 {
        let since = match self.0 {
            ClockSource::Machine => {
                SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
            }
            ClockSource::Tokio(start) => start.elapsed(),
        };
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Waits until [`Clock::now_ms`] shows `deadline_ms`.
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

/// How long a nap is that begins now: up to the next whole nap of the clock, so that all who sleep
/// long wake together and the machine wakes once for them.
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

/// Apple's monotonic clock counts sleep. The one behind the standard library's `Instant` does not.
#[cfg(target_vendor = "apple")]
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Elsewhere the monotonic clock has to do, whether it counts suspend or not.
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn since_boot() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

/// Where the library draws its random numbers. Clones share one sequence.
#[derive(Clone, Debug)]
pub struct Rng(Arc<Mutex<fastrand::Rng>>);

impl Rng {
    /// Numbers that nobody can foresee: seeded by the operating system.
    pub fn of_system() -> Self {
        // The hasher's keys come from the operating system, so two hosts never share a seed.
        Self::seeded(RandomState::new().hash_one(SystemTime::now()))
    }

    /// The same numbers for the same seed.
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))))
    }

    /// 64 random bits.
    pub fn bits(&self) -> u64 {
        self.draw(|rng| rng.u64(..))
    }

    /// A number below `bound`, or 0 if that is 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.draw(|rng| rng.u64(..bound)) }
    }

    /// A number that tells one write from all others.
    pub fn nonce(&self) -> Nonce {
        Nonce(self.bits())
    }

    fn draw<T>(&self, from: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        // A generator has no state that a panic could leave half done.
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
