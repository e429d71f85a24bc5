//! A stop signal that is cheap to check before each record and can also be awaited.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio_util::sync::CancellationToken;

/// Signal that asks tasks to stop. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct StopSignal {
    /// True once set. The token knows this too, but checking it takes a lock.
    said: Arc<AtomicBool>,
    /// Wakes the tasks in [`StopSignal::wait`].
    token: CancellationToken,
}

impl StopSignal {
    /// Sets the signal.
    pub(super) fn set(&self) {
        self.said.store(true, Ordering::Release);
        self.token.cancel();
    }

    /// Returns true if the signal is set.
    #[inline]
    pub(super) fn is_set(&self) -> bool {
        self.said.load(Ordering::Acquire)
    }

    /// Waits until the signal is set.
    pub(super) async fn wait(&self) {
        self.token.cancelled().await;
    }

    /// Returns the underlying token, for tasks that only wait.
    pub(super) fn token(&self) -> CancellationToken {
        self.token.clone()
    }
}
