//! The children that live. All of them can be killed at once, whoever holds them: a daemon that
//! ends in the same moment leaves nobody who would do it later.

use crate::process_group;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Which children live. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChildRegistry(Arc<Mutex<RegistryState>>);

#[derive(Debug, Default)]
struct RegistryState {
    /// Their process ids.
    pids: BTreeSet<u32>,
    /// Whether none may live any longer.
    is_over: bool,
}

/// A child that lives, for as long as this is held.
#[derive(Debug)]
pub(crate) struct ChildGuard {
    pid: u32,
    living: ChildRegistry,
}

impl ChildRegistry {
    /// Counts a child that was started. It is killed if none may live any longer.
    pub(crate) fn register(&self, pid: u32) -> ChildGuard {
        let mut state = self.state();
        if state.is_over {
            process_group::kill_group(pid);
        } else {
            state.pids.insert(pid);
        }
        ChildGuard { pid, living: self.clone() }
    }

    /// Kills all that live, with what they started, and whoever is started from now on.
    pub(crate) fn kill_all(&self) {
        let mut state = self.state();
        state.is_over = true;
        std::mem::take(&mut state.pids).into_iter().for_each(process_group::kill_group);
    }

    fn state(&self) -> MutexGuard<'_, RegistryState> {
        // Nothing here panics half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        self.living.state().pids.remove(&self.pid);
    }
}
