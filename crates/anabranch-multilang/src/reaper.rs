//! Children on their way out: each has time to end by itself, and none is left behind.

use crate::child::Child;
use std::sync::{Mutex, PoisonError};
use tokio::task::JoinSet;

/// Waits for children whose shard is over, so that nobody else has to.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    /// One task a child.
    closing: Mutex<JoinSet<()>>,
}

impl Reaper {
    /// Closes the child's input, and sees to its end.
    pub(crate) fn take(&self, child: Child) {
        let mut closing = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        while closing.try_join_next().is_some() {}
        closing.spawn(child.close());
    }

    /// Waits until all of them have ended.
    pub(crate) async fn all(&self) {
        let mut closing =
            std::mem::take(&mut *self.closing.lock().unwrap_or_else(PoisonError::into_inner));
        while closing.join_next().await.is_some() {}
    }
}
