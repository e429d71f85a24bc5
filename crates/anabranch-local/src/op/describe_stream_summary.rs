//! `DescribeStreamSummary`: describes a stream without its shards.

use crate::engine::Engine;
use crate::error::ApiError;
use crate::lifecycle::Status;
use crate::op::{Operation, StreamModeDetails, StreamTarget, Timestamp};
use crate::stream::Topology;
use serde::{Deserialize, Serialize};

/// Request of `DescribeStreamSummary`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
}

/// Reply to `DescribeStreamSummary`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Reply {
    pub stream_description_summary: StreamSummary,
}

/// A stream without its shards.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct StreamSummary {
    pub stream_name: String,
    #[serde(rename = "StreamARN")]
    pub stream_arn: String,
    pub stream_status: Status,
    pub stream_mode_details: StreamModeDetails,
    pub retention_period_hours: u32,
    pub stream_creation_timestamp: Timestamp,
    pub enhanced_monitoring: Vec<EnhancedMetrics>,
    pub encryption_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    pub open_shard_count: usize,
    pub consumer_count: usize,
    #[serde(rename = "MaxRecordSizeInKiB")]
    pub max_record_size_in_kib: u32,
}

/// The shard-level metrics that are on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct EnhancedMetrics {
    pub shard_level_metrics: Vec<String>,
}

impl EnhancedMetrics {
    /// Returns the metrics as a list of one entry, like the service.
    pub(crate) fn of(topology: &Topology) -> Vec<Self> {
        vec![Self { shard_level_metrics: topology.metrics.iter().cloned().collect() }]
    }
}

impl Engine {
    /// Describes a stream without its shards.
    pub fn describe_stream_summary(&self, request: &Request) -> Result<Reply, ApiError> {
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        self.run(Operation::DescribeStreamSummary, Some(&name), || {
            let stream = self.find_by_name(&name)?;
            let now_ms = self.now_ms();
            let topology = stream.read();
            let status = topology.status(now_ms).ok_or_else(|| self.stream_not_found(&name))?;
            let creating = status == Status::Creating;
            let open_shard_count = if creating { 0 } else { topology.open_shards().len() };
            Ok(Reply {
                stream_description_summary: StreamSummary {
                    stream_name: stream.name.clone(),
                    stream_arn: stream.arn.clone(),
                    stream_status: status,
                    stream_mode_details: topology.mode.into(),
                    retention_period_hours: topology.retention_hours,
                    stream_creation_timestamp: Timestamp(stream.created_ms),
                    enhanced_monitoring: EnhancedMetrics::of(&topology),
                    encryption_type: topology.encryption().name(),
                    key_id: topology.key_id.clone(),
                    open_shard_count,
                    consumer_count: topology.present_consumers(now_ms).count(),
                    max_record_size_in_kib: topology.record_max_kib,
                },
            })
        })
    }
}
