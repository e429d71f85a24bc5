//! What keeps a hold alive: the worker's own heart, or in KCL's layout the lease's.

use crate::clock::Clock;
use anabranch_model::lease::{Deadline, Tenure};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// How a heart beats, for those that depend on it.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// How it stands.
    state: Mutex<State>,
    /// Until when the owner delivers, as the state says. Asked before each call of a handler, so it
    /// is kept where no lock is needed.
    delivers_until_ms: AtomicU64,
    /// Wakes those that wait, in the order in which they came. A `watch` channel would wake them in
    /// a random one, and no history could be had twice.
    changed: Notify,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// Until when the last successful beat carries.
    deadline: Deadline,
    /// Whether the heart was found to be dead before that.
    stopped: bool,
}

impl Pulse {
    /// A heart that beat for the first time at `sent_ms`.
    pub(crate) fn new(lease_time_ms: u64, sent_ms: u64) -> Self {
        let deadline = Deadline::new(lease_time_ms, sent_ms);
        let state = Mutex::new(State { deadline, stopped: false });
        let delivers_until_ms = AtomicU64::new(deadline.pauses_ms());
        Self { state, delivers_until_ms, changed: Notify::new() }
    }

    /// Whether the owner may deliver: [`Tenure::Delivers`], without a lock.
    #[inline]
    pub(crate) fn delivers(&self, now_ms: u64) -> bool {
        now_ms < self.delivers_until_ms.load(Ordering::Acquire)
    }

    /// Where the owner stands.
    pub(crate) fn tenure(&self, now_ms: u64) -> Tenure {
        let state = self.state();
        if state.stopped { Tenure::Over } else { state.deadline.at(now_ms) }
    }

    /// Whether everything that depends on it is lost.
    pub(crate) fn is_over(&self, now_ms: u64) -> bool {
        self.tenure(now_ms) == Tenure::Over
    }

    /// When everything that depends on it is lost, if no further beat succeeds.
    pub(crate) fn over_ms(&self) -> u64 {
        let state = self.state();
        if state.stopped { 0 } else { state.deadline.over_ms() }
    }

    /// Notes at `now_ms` that the beat that was first sent at `sent_ms` succeeded. Returns whether
    /// that was in time.
    pub(crate) fn beat(&self, sent_ms: u64, now_ms: u64) -> bool {
        self.change(|state| match state.deadline.after_beat(sent_ms, now_ms) {
            Some(deadline) => state.deadline = deadline,
            None => state.stopped = true,
        });
        !self.is_over(now_ms)
    }

    /// Notes that the heart is dead: nothing is delivered from now on.
    pub(crate) fn stop(&self) {
        self.change(|state| state.stopped = true);
    }

    /// Waits until the owner stands elsewhere than at `from`, and says where.
    pub(crate) async fn other_than(&self, from: Tenure, clock: &Clock) -> Tenure {
        loop {
            // Listens before it looks, so that no change falls in between.
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            let now = self.tenure(clock.now_ms());
            if now != from {
                return now;
            }
            let deadline = self.state().deadline;
            let turns_ms = match now {
                Tenure::Delivers => deadline.pauses_ms(),
                Tenure::Pauses | Tenure::Over => deadline.over_ms(),
            };
            tokio::select! {
                biased;
                () = changed => {}
                () = clock.sleep_until(turns_ms), if now != Tenure::Over => {}
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        let until_ms = if state.stopped { 0 } else { state.deadline.pauses_ms() };
        self.delivers_until_ms.store(until_ms, Ordering::Release);
        drop(state);
        self.changed.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment, so a panic leaves no half of one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivery_is_allowed_exactly_while_the_tenure_says_so() {
        let check = |pulse: &Pulse| {
            for now_ms in 0..4_000 {
                let delivers = pulse.tenure(now_ms) == Tenure::Delivers;
                assert_eq!(pulse.delivers(now_ms), delivers, "{now_ms}: {pulse:?}");
            }
        };
        let pulse = Pulse::new(1_000, 10);
        check(&pulse);
        assert!(pulse.beat(500, 700));
        check(&pulse);
        assert!(pulse.beat(400, 800), "an older beat changes nothing");
        check(&pulse);
        assert!(!pulse.beat(2_000, 2_000), "too late");
        check(&pulse);
        let pulse = Pulse::new(1_000, 10);
        pulse.stop();
        check(&pulse);
    }
}
