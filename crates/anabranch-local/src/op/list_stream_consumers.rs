//! `ListStreamConsumers`: the fan-out consumers of a stream, page by page.
//!
//! Differs from AWS: `StreamCreationTimestamp` is accepted and ignored.

use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::{ConsumerDescription, Operation, StreamTarget, Timestamp};
use serde::{Deserialize, Serialize};

/// Number of consumers on a page if the request names no maximum.
const DEFAULT_RESULTS: i64 = 100;

/// Request of `ListStreamConsumers`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    pub next_token: Option<String>,
    pub max_results: Option<i64>,
    pub stream_creation_timestamp: Option<Timestamp>,
}

/// Reply to `ListStreamConsumers`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Reply {
    pub consumers: Vec<ConsumerDescription>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

impl Engine {
    /// Lists the consumers of a stream.
    pub fn list_stream_consumers(&self, request: &Request) -> Result<Reply, ApiError> {
        Constraints::new()
            .within(request.max_results, "maxResults", 1, 10_000)
            .length(request.next_token.as_deref(), "nextToken", 1, 1_048_576)
            .check()?;
        let limit = usize::try_from(request.max_results.unwrap_or(DEFAULT_RESULTS)).unwrap_or(1);
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        let after = request
            .next_token
            .as_deref()
            .map(|token| self.list_token(Operation::ListStreamConsumers, token))
            .transpose()?;
        self.run(Operation::ListStreamConsumers, Some(&name), || {
            let stream = self.find_by_name(&name)?;
            let topology = stream.read();
            let mut rest = topology
                .present_consumers(self.now_ms())
                .filter(|(consumer, _)| after.as_ref().is_none_or(|after| consumer.name > *after));
            let page = rest.by_ref().take(limit);
            let consumers: Vec<_> =
                page.map(|(consumer, status)| ConsumerDescription::of(consumer, status)).collect();
            let last = consumers.last().filter(|_| rest.next().is_some());
            let next_token = last.map(|last| {
                self.new_list_token(Operation::ListStreamConsumers, &last.consumer_name)
            });
            Ok(Reply { consumers, next_token })
        })
    }
}
