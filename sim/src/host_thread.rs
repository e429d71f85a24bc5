//! The only thread of a host. While a handler blocks it, nothing else on the host runs.

use tokio::sync::watch;

/// The only thread of a host. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct HostThread(watch::Sender<Option<u64>>);

impl HostThread {
    /// Blocks the thread for `for_ms`. The host freezes at the end of this poll and resumes here.
    /// Returns at once if the thread is blocked already.
    pub async fn block(&self, for_ms: u64) {
        let begins = self.0.send_if_modified(|blocked| {
            let free = blocked.is_none();
            *blocked = Some(blocked.unwrap_or(for_ms));
            free
        });
        if begins {
            // `self` holds the sender of the channel, so it cannot be closed.
            let _ = self.0.subscribe().wait_for(Option::is_none).await;
        }
    }

    /// Waits until a handler blocks the thread.
    pub(crate) async fn blocked(&self) {
        let _ = self.0.subscribe().wait_for(Option::is_some).await;
    }

    /// Returns for how long a handler blocks the thread, if one does, and unblocks it. That handler
    /// is the next to run.
    pub(crate) fn take(&self) -> Option<u64> {
        let blocked = *self.0.borrow();
        blocked.is_some().then(|| self.0.send_replace(None)).flatten()
    }
}
