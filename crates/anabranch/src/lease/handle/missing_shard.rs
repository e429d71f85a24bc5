//! The end of a shard that the service no longer has.

use super::LeaseHandle;
use super::shard_end::ShardEndResult;
use crate::event::LeaseEvent;
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::{ShardFilter, StreamApi};
use anabranch_model::lease::{NewLease, is_same_creation};
use anabranch_model::lineage::Lineage;
use anabranch_model::retry::Fault;

/// What became of a shard that the service did not know.
#[derive(Debug)]
#[must_use]
pub enum MissingShardResult {
    /// No proof that it is gone: go on reading, after a pause.
    NotProven,
    /// It is gone with whatever was not read. Its keys go on in the shards that are left.
    Ended,
    /// The stream itself is gone, or another one under the same name. The coordinator looks into
    /// it at once, and stops reading the stream.
    StreamReplaced,
    /// The lease is lost.
    Lost,
    /// The store will not do it, ever.
    Failed(StoreError),
}

impl<S: LeaseStore, A: StreamApi> LeaseHandle<S, A> {
    /// Has the coordinator look into the stream: the service said that it is not there.
    pub(crate) fn suspect_stream(&self) {
        self.context.suspect_streams.add(&self.key().stream);
    }

    /// To be asked when the service says that it has no such shard. If a full list of the same
    /// stream proves it, the row ends and the shards that inherit its keys get rows.
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
        // Before the row says so: whoever crashes in between would leave a loss that nobody told.
        self.context.emit(LeaseEvent::ShardMissing { lease: key.clone(), successors: names });
        match self.write_end(heirs).await {
            ShardEndResult::Done => MissingShardResult::Ended,
            ShardEndResult::NotYet { .. } => MissingShardResult::NotProven,
            ShardEndResult::Lost => MissingShardResult::Lost,
            ShardEndResult::Failed(error) => MissingShardResult::Failed(error),
        }
    }

    /// Whether the stream is the one that the lease is of. `None` if nobody can tell now.
    async fn is_same_stream(&self) -> Option<bool> {
        let (tools, stream) = (&self.context, &self.key().stream);
        let created_ms = match tools.describe(stream).await {
            Ok(summary) => summary.created_ms,
            Err(error) if error.fault == Fault::Missing => return Some(false),
            Err(_) => return None,
        };
        // KCL's table does not keep the creation time; this worker has known it since its start.
        if self.held.created_ms().is_some_and(|known_ms| !is_same_creation(known_ms, created_ms)) {
            return Some(false);
        }
        let known = tools.facts(stream).await.ok()?;
        Some(known.is_none_or(|facts| is_same_creation(facts.created_ms, created_ms)))
    }
}
