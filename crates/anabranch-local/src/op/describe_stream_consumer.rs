//! `DescribeStreamConsumer`: describes one fan-out consumer.

use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::{ConsumerDescription, ConsumerTarget, Operation};
use serde::{Deserialize, Serialize};

/// Request of `DescribeStreamConsumer`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub consumer: ConsumerTarget,
}

/// Reply to `DescribeStreamConsumer`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Reply {
    pub consumer_description: ConsumerDescription,
}

impl Engine {
    /// Describes a consumer.
    pub fn describe_stream_consumer(&self, request: &Request) -> Result<Reply, ApiError> {
        let named = self.resolve_consumer(&request.consumer)?;
        self.run(Operation::DescribeStreamConsumer, Some(&named.stream), || {
            let stream = self.find_by_name(&named.stream)?;
            let topology = stream.read();
            let mut present = topology.present_consumers(self.now_ms());
            let found = present.find(|(consumer, _)| named.is(consumer));
            let shown = named.arn.or(named.name).unwrap_or_default();
            let (consumer, status) = found.ok_or_else(|| Self::consumer_not_found(shown))?;
            let stream_arn = Some(stream.arn.clone());
            let description = ConsumerDescription::of(consumer, status);
            Ok(Reply { consumer_description: ConsumerDescription { stream_arn, ..description } })
        })
    }
}
