//! Full lists of the shards: one for all shards of a stream that wait for something to be listed.
//!
//! A list of ten thousand shards is ten calls, and a shard may wait for hours. What a list proves to
//! be gone stays gone, so an older list costs time and nothing else.

use anabranch_model::ids::StreamName;
use anabranch_model::lineage::Lineage;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

/// For how long a list is shared, in milliseconds since its call began.
const LISTED_FOR_MS: u64 = 30_000;

/// For how long no call is made after one that failed, in milliseconds.
const FAILED_FOR_MS: u64 = 5_000;

/// The last list of each stream.
#[derive(Debug, Default)]
pub(crate) struct ShardLists {
    /// The locks are held during a call, and each holds up its own stream only.
    streams: Mutex<BTreeMap<StreamName, Arc<tokio::sync::Mutex<Option<CachedList>>>>>,
}

/// What came of a call.
#[derive(Debug)]
struct CachedList {
    /// Until when it is shared, by the worker's clock.
    until_ms: u64,
    /// The list. `None`: the call failed.
    list: Option<Arc<Lineage>>,
}

impl ShardLists {
    /// Returns a full list of a stream's shards that is at most half a minute old. Makes `call`
    /// unless the last answer is young enough. `None`: the shards can't be listed.
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
        // An insertion is whole before the lock goes, so a panic leaves no half of one.
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.entry(stream.clone()).or_default().clone()
    }
}
