//! The word to stop: cheap to ask for before each record, and waited for as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio_util::sync::CancellationToken;

/// Tells tasks to stop. Clones share the word.
#[derive(Clone, Debug, Default)]
pub(super) struct StopSignal {
    /// Whether it was said. The token knows too, but would take a lock for each answer.
    said: Arc<AtomicBool>,
    /// Wakes those that wait for it.
    token: CancellationToken,
}

impl StopSignal {
    /// Says it.
    pub(super) fn set(&self) {
        self.said.store(true, Ordering::Release);
        self.token.cancel();
    }

    /// Whether it was said.
    #[inline]
    pub(super) fn is_set(&self) -> bool {
        self.said.load(Ordering::Acquire)
    }

    /// Waits until it is said.
    pub(super) async fn wait(&self) {
        self.token.cancelled().await;
    }

    /// What those wait for who only wait.
    pub(super) fn token(&self) -> CancellationToken {
        self.token.clone()
    }
}
