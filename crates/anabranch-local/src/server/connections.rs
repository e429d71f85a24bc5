//! Connection counts of a port.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Connection counts of one port of a local stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Connections {
    /// Connections accepted since the start, including those whose TLS handshake failed.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
}

/// The counts, while connections open and close.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    accepted: AtomicU64,
    closed: AtomicU64,
}

impl Counter {
    /// Counts a new connection. It counts as open until the guard is dropped.
    pub(super) fn accepted(self: &Arc<Self>) -> OpenConnection {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(self))
    }

    pub(super) fn now(&self) -> Connections {
        // Loaded first, so that it cannot exceed `accepted`.
        let closed = self.closed.load(Ordering::Acquire);
        let accepted = self.accepted.load(Ordering::Relaxed);
        Connections { accepted, open: accepted.saturating_sub(closed) }
    }
}

/// Guard of an open connection.
#[derive(Debug)]
pub(super) struct OpenConnection(Arc<Counter>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.closed.fetch_add(1, Ordering::Release);
    }
}
