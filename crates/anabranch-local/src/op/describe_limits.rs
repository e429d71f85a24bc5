//! `DescribeLimits`: the account's limits on shards and on-demand streams, and their current use.

use crate::change::StreamMode;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::lifecycle::Status;
use crate::op::Operation;
use anabranch_model::limits;
use serde::{Deserialize, Serialize};

/// Request of `DescribeLimits`. It has no fields.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Request {}

/// Reply to `DescribeLimits`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Reply {
    pub shard_limit: u32,
    pub open_shard_count: usize,
    pub on_demand_stream_count: usize,
    pub on_demand_stream_count_limit: u32,
}

impl Engine {
    /// Returns the account's limits and their current use.
    pub fn describe_limits(&self, _request: &Request) -> Result<Reply, ApiError> {
        self.run(Operation::DescribeLimits, None, || {
            let streams = self.present_streams();
            let kept = streams.iter().filter(|(_, status)| *status != Status::Deleting);
            let topologies = kept.map(|(stream, _)| {
                let topology = stream.read();
                (topology.open_shards().len(), topology.mode)
            });
            let topologies: Vec<_> = topologies.collect();
            let on_demand = topologies.iter().filter(|(_, mode)| *mode == StreamMode::OnDemand);
            Ok(Reply {
                shard_limit: self.options().shard_limit,
                open_shard_count: topologies.iter().map(|(open, _)| open).sum(),
                on_demand_stream_count: on_demand.count(),
                on_demand_stream_count_limit: limits::ACCOUNT_ON_DEMAND_STREAM_LIMIT,
            })
        })
    }
}
