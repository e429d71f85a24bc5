//! The heartbeat that keeps leases valid: one per worker, or in KCL's layout one per lease.

use crate::clock::Clock;
use anabranch_model::lease::{Deadline, LeaseValidity};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// State of a heartbeat, shared with everything that depends on it.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    state: Mutex<HeartbeatState>,
    /// End of the period in which the owner may deliver, as `state` says. Read before each call of
    /// a handler, so it is readable without the lock.
    delivers_until_ms: AtomicU64,
    /// Wakes waiters in the order in which they came. A `watch` channel would wake them in random
    /// order, and simulated histories would not be reproducible.
    changed: Notify,
}

#[derive(Clone, Copy, Debug)]
struct HeartbeatState {
    /// Set by the last successful beat.
    deadline: Deadline,
    /// True once the heartbeat was stopped, or a beat succeeded too late.
    stopped: bool,
}

impl Heartbeat {
    /// Creates a heartbeat whose first beat was sent at `sent_ms`.
    pub(crate) fn new(lease_time_ms: u64, sent_ms: u64) -> Self {
        let deadline = Deadline::new(lease_time_ms, sent_ms);
        let state = Mutex::new(HeartbeatState { deadline, stopped: false });
        let delivers_until_ms = AtomicU64::new(deadline.pauses_at_ms());
        Self { state, delivers_until_ms, changed: Notify::new() }
    }

    /// Returns true while the owner may deliver ([`LeaseValidity::Valid`]), without taking a lock.
    #[inline]
    pub(crate) fn may_deliver(&self, now_ms: u64) -> bool {
        now_ms < self.delivers_until_ms.load(Ordering::Acquire)
    }

    /// Returns the validity of the leases that depend on this heartbeat.
    pub(crate) fn validity(&self, now_ms: u64) -> LeaseValidity {
        let state = self.state();
        if state.stopped { LeaseValidity::Expired } else { state.deadline.validity_at(now_ms) }
    }

    /// Returns true if everything that depends on this heartbeat is lost.
    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        self.validity(now_ms) == LeaseValidity::Expired
    }

    /// Returns the time at which everything that depends on it is lost, unless another beat
    /// succeeds.
    pub(crate) fn expires_at_ms(&self) -> u64 {
        let state = self.state();
        if state.stopped { 0 } else { state.deadline.expires_at_ms() }
    }

    /// Records at `now_ms` that the beat first sent at `sent_ms` succeeded. Returns true if it was
    /// in time.
    pub(crate) fn record_beat(&self, sent_ms: u64, now_ms: u64) -> bool {
        self.change(|state| match state.deadline.after_beat(sent_ms, now_ms) {
            Some(deadline) => state.deadline = deadline,
            None => state.stopped = true,
        });
        !self.is_expired(now_ms)
    }

    /// Stops the heartbeat for good: nothing is delivered from now on.
    pub(crate) fn stop(&self) {
        self.change(|state| state.stopped = true);
    }

    /// Waits until the validity differs from `from`, and returns the new one.
    pub(crate) async fn wait_for_change(
        &self,
        from: LeaseValidity,
        clock: &Clock,
    ) -> LeaseValidity {
        loop {
            // Registers before the check, so that no change is missed in between.
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            let now = self.validity(clock.now_ms());
            if now != from {
                return now;
            }
            let deadline = self.state().deadline;
            let turns_ms = match now {
                LeaseValidity::Valid => deadline.pauses_at_ms(),
                LeaseValidity::Paused | LeaseValidity::Expired => deadline.expires_at_ms(),
            };
            tokio::select! {
                biased;
                () = changed => {}
                () = clock.sleep_until(turns_ms), if now != LeaseValidity::Expired => {}
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut HeartbeatState)) {
        let mut state = self.state();
        change(&mut state);
        let until_ms = if state.stopped { 0 } else { state.deadline.pauses_at_ms() };
        self.delivers_until_ms.store(until_ms, Ordering::Release);
        drop(state);
        self.changed.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, HeartbeatState> {
        // Each change is one assignment, so a panic leaves a consistent state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivery_is_allowed_exactly_while_the_tenure_says_so() {
        let check = |pulse: &Heartbeat| {
            for now_ms in 0..4_000 {
                let delivers = pulse.validity(now_ms) == LeaseValidity::Valid;
                assert_eq!(pulse.may_deliver(now_ms), delivers, "{now_ms}: {pulse:?}");
            }
        };
        let pulse = Heartbeat::new(1_000, 10);
        check(&pulse);
        assert!(pulse.record_beat(500, 700));
        check(&pulse);
        assert!(pulse.record_beat(400, 800), "an older beat changes nothing");
        check(&pulse);
        assert!(!pulse.record_beat(2_000, 2_000), "too late");
        check(&pulse);
        let pulse = Heartbeat::new(1_000, 10);
        pulse.stop();
        check(&pulse);
    }
}
