//! References to a consumer in requests, and its description in replies.

use crate::arn;
use crate::consumer::Consumer;
use crate::engine::{Engine, StreamRef};
use crate::error::ApiError;
use crate::lifecycle::Status;
use crate::op::Timestamp;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Reference to a consumer: by its ARN, or by its stream's ARN and its name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct ConsumerTarget {
    #[serde(rename = "ConsumerARN")]
    pub consumer_arn: Option<String>,
    #[serde(rename = "StreamARN")]
    pub stream_arn: Option<String>,
    #[serde(rename = "ConsumerName")]
    pub consumer_name: Option<String>,
}

/// A consumer as replies describe it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct ConsumerDescription {
    pub consumer_name: String,
    #[serde(rename = "ConsumerARN")]
    pub consumer_arn: String,
    pub consumer_status: Status,
    pub consumer_creation_timestamp: Timestamp,
    #[serde(rename = "StreamARN", skip_serializing_if = "Option::is_none")]
    pub stream_arn: Option<String>,
}

impl ConsumerDescription {
    pub(crate) fn of(consumer: &Consumer, status: Status) -> Self {
        Self {
            consumer_name: consumer.name.clone(),
            consumer_arn: consumer.arn.clone(),
            consumer_status: status,
            consumer_creation_timestamp: Timestamp(consumer.created_ms),
            stream_arn: None,
        }
    }
}

/// A resolved reference to a consumer: its stream, and its ARN or name there.
pub(crate) struct NamedConsumer<'a> {
    pub(crate) stream: Cow<'a, str>,
    pub(crate) arn: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
}

impl NamedConsumer<'_> {
    pub(crate) fn is(&self, consumer: &Consumer) -> bool {
        self.arn.is_none_or(|arn| arn == consumer.arn)
            && self.name.is_none_or(|name| name == consumer.name)
    }
}

impl Engine {
    /// Resolves a reference to a consumer. Checks it, but does not look the consumer up.
    pub(crate) fn resolve_consumer<'a>(
        &self,
        target: &'a ConsumerTarget,
    ) -> Result<NamedConsumer<'a>, ApiError> {
        if let Some(text) = target.consumer_arn.as_deref() {
            let parsed = arn::parse(text).filter(|parsed| parsed.consumer.is_some());
            let parsed = parsed.ok_or_else(|| {
                ApiError::invalid(format!("ConsumerARN {text} is not the ARN of a consumer."))
            })?;
            if parsed.account != self.home.account || parsed.region != self.home.region {
                return Err(Self::consumer_not_found(text));
            }
            let name = target.consumer_name.as_deref();
            let stream = Cow::Borrowed(parsed.stream);
            return Ok(NamedConsumer { stream, arn: Some(text), name });
        }
        let (Some(arn), Some(name)) = (&target.stream_arn, target.consumer_name.as_deref()) else {
            return Err(ApiError::invalid(
                "Either ConsumerARN, or StreamARN and ConsumerName, must be provided.",
            ));
        };
        let stream = StreamRef { name: None, arn: Some(Cow::Borrowed(arn)) };
        let stream = self.resolve(&stream)?.into_owned();
        Ok(NamedConsumer { stream: Cow::Owned(stream), arn: None, name: Some(name) })
    }

    pub(crate) fn consumer_not_found(shown: &str) -> ApiError {
        ApiError::not_found(format!("Consumer {shown} not found."))
    }
}
