//! Children on their way out: each has time to end by itself, and none is left behind.

use crate::child::Child;
use crate::child_registry::ChildRegistry;
use crate::protocol::ShutdownMessages;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Waits for children whose shard is over, so that nobody else has to.
#[derive(Debug)]
pub(crate) struct Reaper {
    /// One task a child. `None` once whoever still lives is to be killed.
    closing: Mutex<Option<JoinSet<()>>>,
    /// All children, also those that are not on their way out.
    living: ChildRegistry,
}

impl Reaper {
    /// One that takes children.
    pub(crate) fn open() -> Self {
        Self { closing: Mutex::new(Some(JoinSet::new())), living: ChildRegistry::default() }
    }

    /// Counts a child that was started, so that it is killed with all others.
    pub(crate) fn adopt(&self, child: Child) -> Child {
        child.registered_in(&self.living)
    }

    /// Closes the child's input, and sees to its end.
    pub(crate) fn close(&self, child: Child) {
        self.spawn_end(child.close());
    }

    /// Parts with the child, and sees to its end.
    pub(crate) fn release(&self, child: Child, messages: ShutdownMessages) {
        self.spawn_end(async move {
            if let Some(child) = child.release(messages).await {
                child.close().await;
            }
        });
    }

    /// Runs the end of a child, which is killed where that can't be run.
    fn spawn_end(&self, end: impl Future<Output = ()> + Send + 'static) {
        if let (Some(closing), Ok(runtime)) = (&mut *self.closing(), Handle::try_current()) {
            while closing.try_join_next().is_some() {}
            closing.spawn_on(end, &runtime);
        }
    }

    /// Waits until all of them have ended.
    pub(crate) async fn wait_all(&self) {
        loop {
            let Some(mut closing) = self.closing().as_mut().map(std::mem::take) else { return };
            if closing.is_empty() {
                return;
            }
            while closing.join_next().await.is_some() {}
        }
    }

    /// Kills all children now, and all that still come. Whoever holds one finds it dead.
    pub(crate) fn kill_all(&self) {
        *self.closing() = None;
        self.living.kill_all();
    }

    fn closing(&self) -> MutexGuard<'_, Option<JoinSet<()>>> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
