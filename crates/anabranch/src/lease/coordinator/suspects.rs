//! Streams that seem to be gone or another's: looked into at once, not at the next audit.

use anabranch_model::ids::StreamName;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Streams that are to be looked into.
#[derive(Debug, Default)]
pub(crate) struct SuspectStreams {
    /// Which.
    streams: Mutex<BTreeSet<StreamName>>,
    /// Wakes whoever looks into them.
    wake: Notify,
}

impl SuspectStreams {
    /// A reader of this stream was told that its shard is not there, and the stream not either.
    pub(crate) fn add(&self, stream: &StreamName) {
        self.lock().insert(stream.clone());
        self.wake.notify_one();
    }

    /// Waits until there are some, and takes them out.
    pub(crate) async fn next(&self) -> BTreeSet<StreamName> {
        loop {
            let some = std::mem::take(&mut *self.lock());
            if !some.is_empty() {
                return some;
            }
            self.wake.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<StreamName>> {
        // Each change is one insertion, so a panic leaves no half of one.
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
