//! The children that live. All of them can be killed at once, whoever holds them: a daemon that
//! ends in the same moment leaves nobody who would do it later.

use crate::group;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Which children live. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Living(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Their process ids.
    pids: BTreeSet<u32>,
    /// Whether none may live any longer.
    is_over: bool,
}

/// A child that lives, for as long as this is held.
#[derive(Debug)]
pub(crate) struct Life {
    pid: u32,
    living: Living,
}

impl Living {
    /// Counts a child that was started. It is killed if none may live any longer.
    pub(crate) fn begin(&self, pid: u32) -> Life {
        let mut state = self.state();
        if state.is_over {
            group::kill(pid);
        } else {
            state.pids.insert(pid);
        }
        Life { pid, living: self.clone() }
    }

    /// Kills all that live, with what they started, and whoever is started from now on.
    pub(crate) fn kill_all(&self) {
        let mut state = self.state();
        state.is_over = true;
        std::mem::take(&mut state.pids).into_iter().for_each(group::kill);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing here panics half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.living.state().pids.remove(&self.pid);
    }
}
