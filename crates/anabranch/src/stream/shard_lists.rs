//! Cache of full shard lists: shards of one stream that wait for a list share one call.
//!
//! A list of ten thousand shards takes ten calls, and a shard may wait for hours. A shard that a
//! list proves to be gone stays gone, so an older list only delays.

use anabranch_model::ids::StreamName;
use anabranch_model::lineage::Lineage;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

/// Lifetime of a list, in milliseconds since its call began.
const LISTED_FOR_MS: u64 = 30_000;

/// Pause after a failed call, in milliseconds.
const FAILED_FOR_MS: u64 = 5_000;

/// The last list of each stream.
#[derive(Debug, Default)]
pub(crate) struct ShardLists {
    /// The inner lock is held during a call, and delays only callers of the same stream.
    streams: Mutex<BTreeMap<StreamName, Arc<tokio::sync::Mutex<Option<CachedList>>>>>,
}

/// Result of a call.
#[derive(Debug)]
struct CachedList {
    /// Time until which it is shared, by the worker's clock.
    until_ms: u64,
    /// The list, or `None` if the call failed.
    list: Option<Arc<Lineage>>,
}

impl ShardLists {
    /// Returns a full list of a stream's shards that is at most 30 s old. Makes `call` unless the
    /// last answer is recent enough. Returns `None` if the shards cannot be listed.
    pub(crate) async fn get(
        &self,
        stream: &StreamName,
        now_ms: impl Fn() -> u64,
        call: impl Future<Output = Option<Lineage>>,
    ) -> Option<Arc<Lineage>> {
        let slot = self.of(stream);
        let mut slot = slot.lock().await;
        let began_ms = now_ms();
        if let Some(answer) = slot.as_ref().filter(|answer| began_ms < answer.until_ms) {
            return answer.list.clone();
        }
        let list = call.await.map(Arc::new);
        let until_ms = match &list {
            Some(_) => began_ms + LISTED_FOR_MS,
            None => now_ms() + FAILED_FOR_MS,
        };
        *slot = Some(CachedList { until_ms, list: list.clone() });
        list
    }

    fn of(&self, stream: &StreamName) -> Arc<tokio::sync::Mutex<Option<CachedList>>> {
        // An insertion is complete before the lock is released, so a panic cannot leave half of
        // one.
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.entry(stream.clone()).or_default().clone()
    }
}
