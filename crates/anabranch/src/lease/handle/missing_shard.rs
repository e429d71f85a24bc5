//! The end of a shard that the service no longer has.

use super::LeaseHandle;
use super::shard_end::ShardEndResult;
use crate::event::LeaseEvent;
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::{ShardFilter, StreamApi};
use anabranch_model::lease::{NewLease, is_same_creation};
use anabranch_model::lineage::Lineage;
use anabranch_model::retry::Fault;

/// The result of resolving a shard that the service does not know.
#[derive(Debug)]
#[must_use]
pub enum MissingShardResult {
    /// There is no proof that the shard is gone: continue reading after a pause.
    NotProven,
    /// The shard is gone, and its unread records are lost. Its keys continue in the shards that are
    /// left.
    Ended,
    /// The stream itself is gone or was recreated. The coordinator checks it at once, and stops
    /// reading it.
    StreamReplaced,
    /// The lease is lost.
    Lost,
    /// The store rejected the write permanently.
    Failed(StoreError),
}

impl<S: LeaseStore, A: StreamApi> LeaseHandle<S, A> {
    /// Has the coordinator check the stream, because the service reported it as missing.
    pub(crate) fn suspect_stream(&self) {
        self.context.suspect_streams.add(&self.key().stream);
    }

    /// Resolves a shard that the service reported as missing. If a full list of the same stream
    /// proves that it is gone, ends its row and creates rows for the shards that inherit its keys.
    pub async fn resolve_missing(&self) -> MissingShardResult {
        let (key, api) = (self.key(), &self.context.api);
        match self.is_same_stream().await {
            Some(true) => {}
            Some(false) => {
                self.suspect_stream();
                return MissingShardResult::StreamReplaced;
            }
            None => return MissingShardResult::NotProven,
        }
        let Ok(list) = self
            .context
            .call_stream(&key.stream, api.list_shards(&key.stream, ShardFilter::All))
            .await
        else {
            return MissingShardResult::NotProven;
        };
        let lineage = Lineage::new(list.shards);
        let range = self.lease().range.as_ref();
        let Some(heirs) = lineage.successors(&key.shard, range) else {
            return MissingShardResult::NotProven;
        };
        let heirs: Vec<NewLease> = heirs.into_iter().map(NewLease::child).collect();
        let names = heirs.iter().map(|heir| heir.shard.clone()).collect();
        // Emitted before the row shows it: after a crash in between, the loss would go unreported.
        self.context.emit(LeaseEvent::ShardMissing { lease: key.clone(), successors: names });
        match self.write_end(heirs).await {
            ShardEndResult::Done => MissingShardResult::Ended,
            ShardEndResult::NotYet { .. } => MissingShardResult::NotProven,
            ShardEndResult::Lost => MissingShardResult::Lost,
            ShardEndResult::Failed(error) => MissingShardResult::Failed(error),
        }
    }

    /// Returns true if the stream is the one that the lease belongs to, or `None` if that can't be
    /// determined now.
    async fn is_same_stream(&self) -> Option<bool> {
        let (tools, stream) = (&self.context, &self.key().stream);
        let created_ms = match tools.describe(stream).await {
            Ok(summary) => summary.created_ms,
            Err(error) if error.fault == Fault::Missing => return Some(false),
            Err(_) => return None,
        };
        // KCL's table does not store the creation time; this worker has known it since its start.
        if self.held.created_ms().is_some_and(|known_ms| !is_same_creation(known_ms, created_ms)) {
            return Some(false);
        }
        let known = tools.facts(stream).await.ok()?;
        Some(known.is_none_or(|facts| is_same_creation(facts.created_ms, created_ms)))
    }
}
