//! `MergeShards`: closes two adjacent open shards and opens one child.
//!
//! Differs from AWS: the child is open at once, not at the end of UPDATING.

use crate::change::ChangeKind;
use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::fault::FaultSite;
use crate::op::{Operation, StreamTarget};
use crate::reshard;
use anabranch_model::ids::ShardId;
use serde::Deserialize;

/// Request of `MergeShards`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    pub shard_to_merge: Option<String>,
    pub adjacent_shard_to_merge: Option<String>,
}

impl Engine {
    /// Merges two shards. As on AWS, the first must lie directly below the second.
    pub fn merge_shards(&self, request: &Request) -> Result<(), ApiError> {
        let (low, high) =
            (request.shard_to_merge.as_deref(), request.adjacent_shard_to_merge.as_deref());
        Constraints::new().name(low, "shardToMerge").name(high, "adjacentShardToMerge").check()?;
        let (low, high) = (low.unwrap_or_default(), high.unwrap_or_default());
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        let index = |id: &str| ShardId::from(id).index();
        let shards: Vec<u32> = index(low).into_iter().chain(index(high)).collect();
        let operation = Operation::MergeShards;
        self.run_at(FaultSite { operation, stream: Some(&name), shards: &shards }, || {
            self.change_stream(&name, |scene| {
                let lower = self.reshardable(scene, low)?;
                let upper = self.reshardable(scene, high)?;
                let until_ms = scene.now_ms.saturating_add(self.options().update_delay_ms);
                let (a, b) = (&lower.shard, &upper.shard);
                let reshard = a.range.is_followed_by(&b.range).then(|| {
                    reshard::merge(scene.topology, a.index, b.index, scene.now_ms, until_ms)
                });
                let reshard = reshard.flatten().ok_or_else(|| {
                    ApiError::invalid(format!(
                        "Shards {low} and {high} in stream {name} under account {} are not an \
                         adjacent pair of shards eligible for merging",
                        self.home.account
                    ))
                })?;
                Ok(Some(ChangeKind::Reshard(reshard)))
            })
        })
    }
}
