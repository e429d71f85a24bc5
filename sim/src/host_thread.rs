//! The one thread of a host: a handler that blocks it lets nothing else on the host go on.

use tokio::sync::watch;

/// The one thread of a host. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct HostThread(watch::Sender<Option<u64>>);

impl HostThread {
    /// Blocks the thread for so long: the host stands still from the end of this poll on, and the
    /// first thing that it does then is to go on here. Returns at once if it is blocked already.
    pub async fn block(&self, for_ms: u64) {
        let begins = self.0.send_if_modified(|blocked| {
            let free = blocked.is_none();
            *blocked = Some(blocked.unwrap_or(for_ms));
            free
        });
        if begins {
            // This end of the channel is held here, so it can't be closed.
            let _ = self.0.subscribe().wait_for(Option::is_none).await;
        }
    }

    /// Waits until a handler blocks the thread.
    pub(crate) async fn blocked(&self) {
        let _ = self.0.subscribe().wait_for(Option::is_some).await;
    }

    /// For how long a handler blocks the thread, if one does. It is the next to run.
    pub(crate) fn take(&self) -> Option<u64> {
        let blocked = *self.0.borrow();
        blocked.is_some().then(|| self.0.send_replace(None)).flatten()
    }
}
