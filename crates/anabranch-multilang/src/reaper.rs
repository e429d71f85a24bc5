//! Reaper of children that are being shut down: each has time to exit, and none is left running.

use crate::child::Child;
use crate::child_registry::ChildRegistry;
use crate::protocol::ShutdownMessages;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Waits for the exit of children whose shard is over.
#[derive(Debug)]
pub(crate) struct Reaper {
    /// One task per child. `None` once all children are to be killed.
    closing: Mutex<Option<JoinSet<()>>>,
    /// All children, including those not being shut down.
    living: ChildRegistry,
}

impl Reaper {
    /// Creates a reaper.
    pub(crate) fn open() -> Self {
        Self { closing: Mutex::new(Some(JoinSet::new())), living: ChildRegistry::default() }
    }

    /// Registers a started child, so that `kill_all` kills it.
    pub(crate) fn adopt(&self, child: Child) -> Child {
        child.registered_in(&self.living)
    }

    /// Closes the child's input and waits for its exit in the background.
    pub(crate) fn close(&self, child: Child) {
        self.spawn_end(child.close());
    }

    /// Notifies the child of its lost lease and waits for its exit in the background.
    pub(crate) fn release(&self, child: Child, messages: ShutdownMessages) {
        self.spawn_end(async move {
            if let Some(child) = child.release(messages).await {
                child.close().await;
            }
        });
    }

    /// Spawns the end of a child. Without a runtime, or after `kill_all`, the child is dropped and
    /// so killed.
    fn spawn_end(&self, end: impl Future<Output = ()> + Send + 'static) {
        if let (Some(closing), Ok(runtime)) = (&mut *self.closing(), Handle::try_current()) {
            while closing.try_join_next().is_some() {}
            closing.spawn_on(end, &runtime);
        }
    }

    /// Waits until all of them have exited.
    pub(crate) async fn wait_all(&self) {
        loop {
            let Some(mut closing) = self.closing().as_mut().map(std::mem::take) else { return };
            if closing.is_empty() {
                return;
            }
            while closing.join_next().await.is_some() {}
        }
    }

    /// Kills all children now, and every child registered later.
    pub(crate) fn kill_all(&self) {
        *self.closing() = None;
        self.living.kill_all();
    }

    fn closing(&self) -> MutexGuard<'_, Option<JoinSet<()>>> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
