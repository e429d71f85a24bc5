//! The parts of a coordinator: if one of them panics, the whole has ended.
//!
//! Without its heart, or without the task that takes and gives leases, a worker would hold what
//! nobody reads, and nobody else could have it.

use std::future::Future;
use tokio_util::sync::CancellationToken;

/// What the parts have in common. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct TaskGuard(CancellationToken);

/// Tells if it is dropped by a panic.
struct PanicNotifier(CancellationToken);

impl Drop for PanicNotifier {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.cancel();
        }
    }
}

impl TaskGuard {
    /// Runs one of them.
    pub(super) fn run<F: Future<Output = ()>>(&self, work: F) -> impl Future<Output = ()> + use<F> {
        let guard = PanicNotifier(self.0.clone());
        async move {
            // The work is dropped first.
            let _guard = guard;
            work.await;
        }
    }

    /// Waits until one of them has panicked.
    pub(super) async fn wait_for_panic(&self) {
        self.0.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::JoinSet;

    #[tokio::test]
    async fn only_a_panic_breaks_the_whole() {
        let (parts, mut tasks) = (TaskGuard::default(), JoinSet::new());
        tasks.spawn(parts.run(async {}));
        tasks.join_next().await.unwrap().unwrap();
        tasks.spawn(parts.run(std::future::pending()));
        tasks.shutdown().await;
        assert!(!parts.0.is_cancelled(), "parts that end or are stopped break nothing");
        tasks.spawn(parts.run(async { panic!("on purpose") }));
        parts.wait_for_panic().await;
    }
}
