//! The bell: what wakes the driver, and who waits so that waiting for more records is of no use.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Does what wakes others. A waker that panics is its owner's trouble, and nobody else's.
pub(super) fn wake_caught(wake: impl FnOnce()) {
    // What it left half done is its own, and nothing here looks at it.
    let _ = catch_unwind(AssertUnwindSafe(wake));
}

/// What puts, tickets and the driver share.
#[derive(Debug, Default)]
pub(super) struct DriverWake {
    /// Wakes the driver.
    wake: Notify,
    /// Whether someone waits: for an outcome that is not there, or for room.
    awaited: AtomicBool,
}

impl DriverWake {
    /// Wakes the driver.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Until it rings.
    pub(super) async fn wait(&self) {
        self.wake.notified().await;
    }

    /// Someone begins to wait. The first one wakes the driver.
    pub(super) fn note_waiter(&self) {
        if !self.awaited.load(Ordering::Relaxed) && !self.awaited.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Whether someone began to wait since this was last forgotten.
    pub(super) fn has_waiters(&self) -> bool {
        self.awaited.load(Ordering::Acquire)
    }

    /// Forgets who waits. Whatever they wait for was put before.
    pub(super) fn clear_waiters(&self) {
        self.awaited.swap(false, Ordering::AcqRel);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;
    use std::task::{Wake, Waker};

    /// Does something of its own when it is woken, and when it is dropped.
    struct Meddler<F: Fn()>(F);

    impl<F: Fn()> Wake for Meddler<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }

    impl<F: Fn()> Drop for Meddler<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    /// A waker that does this when it is woken, and when its last clone is dropped.
    pub(in super::super) fn meddler(meddle: impl Fn() + Send + Sync + 'static) -> Waker {
        Waker::from(Arc::new(Meddler(meddle)))
    }
}
