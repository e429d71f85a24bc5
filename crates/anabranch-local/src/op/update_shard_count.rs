//! `UpdateShardCount`: changes the number of shards to equal ones, by splits and merges.
//!
//! Differs from AWS: the new shards are open at once, and the number of calls per day is not
//! limited. The intermediate shards are those of the plan in `reshard.rs`, each with its parents.

use crate::change::ChangeKind;
use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::{Operation, StreamTarget};
use crate::reshard;
use serde::{Deserialize, Serialize};

/// Request of `UpdateShardCount`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    pub target_shard_count: Option<i64>,
    pub scaling_type: Option<String>,
}

/// Reply to `UpdateShardCount`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Reply {
    pub stream_name: String,
    #[serde(rename = "StreamARN")]
    pub stream_arn: String,
    pub current_shard_count: usize,
    pub target_shard_count: usize,
}

impl Engine {
    /// Changes the number of shards.
    pub fn update_shard_count(&self, request: &Request) -> Result<Reply, ApiError> {
        let scaling = request.scaling_type.as_deref();
        Constraints::new()
            .present(request.target_shard_count.as_ref(), "targetShardCount")
            .within(request.target_shard_count, "targetShardCount", 1, 100_000)
            .present(scaling.as_ref(), "scalingType")
            .one_of(scaling, "scalingType", &["UNIFORM_SCALING"])
            .check()?;
        let wanted = request.target_shard_count.and_then(|count| u32::try_from(count).ok());
        let wanted = wanted.ok_or_else(ApiError::internal)?;
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        self.run(Operation::UpdateShardCount, Some(&name), || {
            let mut current = 0;
            self.change_stream(&name, |scene| {
                self.require_active(scene)?;
                Self::require_provisioned(scene)?;
                current = scene.topology.open_shards().len();
                check_step(current, wanted as usize)?;
                let more = (wanted as usize).saturating_sub(current);
                self.check_shard_limit(scene.account_shards, more)?;
                let until_ms = scene.now_ms.saturating_add(self.options().update_delay_ms);
                let plan = reshard::to_count(scene.topology, wanted, scene.now_ms, until_ms);
                Ok(plan.map(ChangeKind::Reshard))
            })?;
            Ok(Reply {
                stream_arn: self.home.stream_arn(&name),
                stream_name: name.to_string(),
                current_shard_count: current,
                target_shard_count: wanted as usize,
            })
        })
    }
}

/// Returns an error if one call would more than double the number of shards, or more than halve it.
fn check_step(current: usize, wanted: usize) -> Result<(), ApiError> {
    let beyond = if wanted > current * 2 {
        "up over double"
    } else if wanted < current.div_ceil(2) {
        "down below half"
    } else {
        return Ok(());
    };
    Err(ApiError::invalid(format!(
        "UpdateShardCount cannot scale {beyond} your current open shard count. Current open shard \
         count: {current} Target shard count: {wanted}"
    )))
}
