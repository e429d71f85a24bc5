//! Progress of creating the table. A start abandons an attempt after a while and makes another one,
//! which must keep what the first one found and must not restart its waits.

use crate::lease::StoreError;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Progress of creating the table. Clones share it.
#[derive(Clone, Debug, Default)]
pub(in crate::lease) struct TablePreparation(Arc<Mutex<PreparationState>>);

/// Conditions that are waited for, each with a time limit of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::lease) enum PreparationWait {
    /// The table becomes ACTIVE.
    Active,
    /// Reads find the table.
    Settled,
    /// Backups can be switched on.
    Backups,
}

#[derive(Debug, Default)]
struct PreparationState {
    /// True if the table was absent at first, so that no operator can have changed it.
    is_new: bool,
    /// Start of each wait in progress.
    since_ms: BTreeMap<PreparationWait, u64>,
}

impl TablePreparation {
    /// Records that the table does not exist.
    pub(in crate::lease) fn note_absent(&self) {
        self.lock().is_new = true;
    }

    /// Returns true if the table was absent at first.
    pub(in crate::lease) fn is_new(&self) -> bool {
        self.lock().is_new
    }

    /// Returns true if a wait has taken `within_ms`, counted from its first check. The next check
    /// then starts a new wait.
    pub(in crate::lease) fn is_over(
        &self,
        wait: PreparationWait,
        within_ms: u64,
        now_ms: u64,
    ) -> bool {
        let mut state = self.lock();
        let since_ms = *state.since_ms.entry(wait).or_insert(now_ms);
        let over = now_ms.saturating_sub(since_ms) >= within_ms;
        if over {
            state.since_ms.remove(&wait);
        }
        over
    }

    /// Ends a wait whose condition is met.
    pub(in crate::lease) fn end(&self, wait: PreparationWait) {
        self.lock().since_ms.remove(&wait);
    }

    /// Forgets everything, unless the same attempt will be repeated.
    pub(in crate::lease) fn after(&self, outcome: &Result<(), StoreError>) {
        if !matches!(outcome, Err(error) if error.is_retryable()) {
            *self.lock() = PreparationState::default();
        }
    }

    fn lock(&self) -> MutexGuard<'_, PreparationState> {
        // Each change is one assignment, so a panic leaves a consistent state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_goes_on_over_several_attempts() {
        let preparation = TablePreparation::default();
        let check = |wait, now_ms, expected| {
            assert_eq!(preparation.is_over(wait, 600, now_ms), expected, "{wait:?} at {now_ms}");
        };
        check(PreparationWait::Backups, 1_000, false);
        check(PreparationWait::Active, 1_500, false);
        check(PreparationWait::Backups, 1_599, false);
        check(PreparationWait::Backups, 1_600, true);
        check(PreparationWait::Backups, 1_601, false);
        preparation.end(PreparationWait::Active);
        check(PreparationWait::Active, 2_150, false);
    }

    #[test]
    fn only_an_attempt_that_is_made_again_knows_that_the_table_is_new() {
        let unreachable =
            StoreError::Unreachable { store: "s".into(), detail: "d".into(), source: None };
        let denied = StoreError::Denied { store: "s".into(), detail: "d".into() };
        for (outcome, is_new) in [(Ok(()), false), (Err(denied), false), (Err(unreachable), true)] {
            let preparation = TablePreparation::default();
            preparation.note_absent();
            preparation.after(&outcome);
            assert_eq!(preparation.is_new(), is_new, "{outcome:?}");
        }
    }
}
