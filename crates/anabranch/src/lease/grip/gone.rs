//! The end of a shard that the service no longer has.

use super::Grip;
use super::end::Ended;
use crate::event::LeaseEvent;
use crate::lease::{LeaseStore, StoreError};
use crate::stream::api::{ShardFilter, StreamApi};
use anabranch_model::hash::HashRange;
use anabranch_model::lease::NewLease;
use anabranch_model::lineage::Lineage;

/// What became of a shard that the service did not know.
#[derive(Debug)]
#[must_use]
pub enum Gone {
    /// No proof that it is gone: go on reading, after a pause.
    NotProven,
    /// It is gone with whatever was not read. Its keys go on in the shards that are left.
    Ended,
    /// The stream itself is gone, or another one under the same name.
    OtherStream,
    /// The lease is lost.
    Lost,
    /// The store will not do it, ever.
    Failed(StoreError),
}

impl<S: LeaseStore, A: StreamApi> Grip<S, A> {
    /// To be asked when the service says that it has no such shard. If a full list of the same
    /// stream proves it, the row ends and the shards that inherit its keys get rows.
    pub async fn gone(&self) -> Gone {
        let (key, api) = (self.key(), &self.tools.api);
        let created_ms = match self.tools.ask(&key.stream, api.describe(&key.stream)).await {
            Ok(summary) => summary.created_ms,
            Err(error) if error.fault == anabranch_model::retry::Fault::Missing => {
                return Gone::OtherStream;
            }
            Err(_) => return Gone::NotProven,
        };
        match self
            .tools
            .read(self.tools.store.application())
            .await
            .map(|it| it.streams.get(&key.stream).copied())
        {
            Ok(Some(facts)) if facts.created_ms != created_ms => return Gone::OtherStream,
            Ok(_) => {}
            Err(_) => return Gone::NotProven,
        }
        let Ok(list) =
            self.tools.ask(&key.stream, api.list_shards(&key.stream, ShardFilter::All)).await
        else {
            return Gone::NotProven;
        };
        let lineage = Lineage::new(list.shards);
        let range = self.lease().range.unwrap_or(HashRange::ALL);
        let Some(heirs) = lineage.heirs(&key.shard, &range) else { return Gone::NotProven };
        let heirs: Vec<NewLease> = heirs.into_iter().map(NewLease::child).collect();
        let names = heirs.iter().map(|heir| heir.shard.clone()).collect();
        match self.end_with(heirs).await {
            Ended::Done => {
                self.tools.tell(LeaseEvent::ShardLost { lease: key.clone(), heirs: names });
                Gone::Ended
            }
            Ended::NotYet { .. } => Gone::NotProven,
            Ended::Lost => Gone::Lost,
            Ended::Failed(error) => Gone::Failed(error),
        }
    }
}
