//! `SplitShard`: closes an open shard and opens two children.
//!
//! Differs from AWS: the children are open at once, not at the end of UPDATING.

use crate::change::ChangeKind;
use crate::constraint::Constraints;
use crate::engine::{Engine, EngineView};
use crate::error::ApiError;
use crate::fault::FaultSite;
use crate::op::{Operation, StreamTarget};
use crate::reshard;
use crate::stream::ShardState;
use anabranch_model::hash::HashKey;
use anabranch_model::ids::ShardId;
use serde::Deserialize;

/// Request of `SplitShard`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    pub shard_to_split: Option<String>,
    pub new_starting_hash_key: Option<String>,
}

impl Engine {
    /// Splits a shard.
    pub fn split_shard(&self, request: &Request) -> Result<(), ApiError> {
        let key = request.new_starting_hash_key.as_deref();
        let shard = request.shard_to_split.as_deref();
        Constraints::new()
            .present(key.as_ref(), "newStartingHashKey")
            .hash_key(key, "newStartingHashKey")
            .name(shard, "shardToSplit")
            .check()?;
        let (key, shard) = (key.unwrap_or_default(), shard.unwrap_or_default());
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        let index = ShardId::from(shard).index();
        let shards: Vec<u32> = index.into_iter().collect();
        let operation = Operation::SplitShard;
        self.run_at(FaultSite { operation, stream: Some(&name), shards: &shards }, || {
            self.change_stream(&name, |scene| {
                let state = self.reshardable(scene, shard)?;
                self.check_shard_limit(scene.account_shards, 1)?;
                let range = state.shard.range;
                let (start, end) = (range.start(), range.end());
                // The service requires more than one key in the lower half.
                let inside = |at: &HashKey| at.0 > start.0.saturating_add(1) && *at < end;
                let at = key.parse::<HashKey>().ok().filter(inside);
                let until_ms = scene.now_ms.saturating_add(self.options().update_delay_ms);
                let reshard = at.and_then(|at| {
                    reshard::split(scene.topology, state.shard.index, at, scene.now_ms, until_ms)
                });
                let reshard = reshard.ok_or_else(|| {
                    ApiError::invalid(format!(
                        "NewStartingHashKey {key} used in SplitShard() on shard {shard} in stream \
                         {name} under account {} is not both greater than one plus the shard's \
                         StartingHashKey {start} and less than the shard's EndingHashKey {end}.",
                        self.home.account
                    ))
                })?;
                Ok(Some(ChangeKind::Reshard(reshard)))
            })
        })
    }

    /// Returns the open shard of the given id, if the stream can be resharded now.
    pub(crate) fn reshardable<'a>(
        &self,
        scene: &EngineView<'a>,
        shard: &str,
    ) -> Result<&'a ShardState, ApiError> {
        let (name, account) = (&scene.stream.name, &self.home.account);
        self.require_active(scene)?;
        Self::require_provisioned(scene)?;
        let index = ShardId::from(shard).index();
        let state = index
            .and_then(|index| scene.topology.listed(index, scene.now_ms))
            .ok_or_else(|| self.shard_not_found(name, shard))?;
        if !state.is_open() {
            return Err(ApiError::invalid(format!(
                "Shard {shard} in stream {name} under account {account} has already been merged or \
                 split, and thus is not eligible for merging or splitting."
            )));
        }
        Ok(state)
    }
}
