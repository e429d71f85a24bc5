//! Registry of running children, to kill them all at once.
//!
//! A daemon that exits right afterwards has no later opportunity to kill them.

use crate::process_group;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Registry of running children. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChildRegistry(Arc<Mutex<RegistryState>>);

#[derive(Debug, Default)]
struct RegistryState {
    /// Process ids.
    pids: BTreeSet<u32>,
    /// True once children may no longer run.
    is_over: bool,
}

/// Registration of a running child, removed on drop.
#[derive(Debug)]
pub(crate) struct ChildGuard {
    pid: u32,
    living: ChildRegistry,
}

impl ChildRegistry {
    /// Registers a started child. Kills it if children may no longer run.
    pub(crate) fn register(&self, pid: u32) -> ChildGuard {
        let mut state = self.state();
        if state.is_over {
            process_group::kill_group(pid);
        } else {
            state.pids.insert(pid);
        }
        ChildGuard { pid, living: self.clone() }
    }

    /// Kills all children with the processes they started, and every child registered later.
    pub(crate) fn kill_all(&self) {
        let mut state = self.state();
        state.is_over = true;
        std::mem::take(&mut state.pids).into_iter().for_each(process_group::kill_group);
    }

    fn state(&self) -> MutexGuard<'_, RegistryState> {
        // No code panics halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        self.living.state().pids.remove(&self.pid);
    }
}
