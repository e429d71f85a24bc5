//! `DescribeStream`: a stream and its shards, page by page.

use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::lifecycle::Status;
use crate::op::describe_stream_summary::EnhancedMetrics;
use crate::op::{Operation, ShardDescription, StreamModeDetails, StreamTarget, Timestamp};
use crate::stream::Topology;
use serde::{Deserialize, Serialize};

/// Number of shards on a page if the request names no limit.
const DEFAULT_LIMIT: i64 = 100;

/// Request of `DescribeStream`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    pub limit: Option<i64>,
    pub exclusive_start_shard_id: Option<String>,
}

/// Reply to `DescribeStream`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Reply {
    pub stream_description: StreamDescription,
}

/// A stream and a page of its shards.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct StreamDescription {
    pub stream_name: String,
    #[serde(rename = "StreamARN")]
    pub stream_arn: String,
    pub stream_status: Status,
    pub stream_mode_details: StreamModeDetails,
    pub shards: Vec<ShardDescription>,
    pub has_more_shards: bool,
    pub retention_period_hours: u32,
    pub stream_creation_timestamp: Timestamp,
    pub enhanced_monitoring: Vec<EnhancedMetrics>,
    pub encryption_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
}

impl Engine {
    /// Describes a stream and its shards.
    pub fn describe_stream(&self, request: &Request) -> Result<Reply, ApiError> {
        Constraints::new()
            .within(request.limit, "limit", 1, 10_000)
            .optional_name(request.exclusive_start_shard_id.as_deref(), "exclusiveStartShardId")
            .check()?;
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        self.run(Operation::DescribeStream, Some(&name), || {
            let stream = self.find_by_name(&name)?;
            let now_ms = self.now_ms();
            let topology = stream.read();
            let status = topology.status(now_ms).ok_or_else(|| self.stream_not_found(&name))?;
            let (shards, has_more_shards) = page(&topology, status, now_ms, request);
            Ok(Reply {
                stream_description: StreamDescription {
                    stream_name: stream.name.clone(),
                    stream_arn: stream.arn.clone(),
                    stream_status: status,
                    stream_mode_details: topology.mode.into(),
                    shards,
                    has_more_shards,
                    retention_period_hours: topology.retention_hours,
                    stream_creation_timestamp: Timestamp(stream.created_ms),
                    enhanced_monitoring: EnhancedMetrics::of(&topology),
                    encryption_type: topology.encryption().name(),
                    key_id: topology.key_id.clone(),
                },
            })
        })
    }
}

/// Returns the shards of one page, and true if more follow. A stream that is CREATING or DELETING
/// shows no shards.
fn page(
    topology: &Topology,
    status: Status,
    now_ms: u64,
    request: &Request,
) -> (Vec<ShardDescription>, bool) {
    if matches!(status, Status::Creating | Status::Deleting) {
        return (Vec::new(), false);
    }
    let limit = usize::try_from(request.limit.unwrap_or(DEFAULT_LIMIT)).unwrap_or(1);
    let after = request.exclusive_start_shard_id.as_deref();
    let mut rest = topology.shards.iter().filter(|state| {
        topology.is_listed(state, now_ms) && after.is_none_or(|id| state.shard.id.as_str() > id)
    });
    let shards = rest.by_ref().take(limit).map(|state| topology.describe(state)).collect();
    (shards, rest.next().is_some())
}
