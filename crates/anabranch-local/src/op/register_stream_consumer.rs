//! `RegisterStreamConsumer`: registers a fan-out consumer. It is CREATING for `create_delay_ms`,
//! then ACTIVE.

use crate::change::ChangeKind;
use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::lifecycle::Status;
use crate::op::{ConsumerDescription, Operation, StreamTarget, tags};
use anabranch_model::limits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Request of `RegisterStreamConsumer`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    pub consumer_name: Option<String>,
    pub tags: Option<BTreeMap<String, String>>,
}

/// Reply to `RegisterStreamConsumer`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Reply {
    pub consumer: ConsumerDescription,
}

impl Engine {
    /// Registers a consumer.
    pub fn register_stream_consumer(&self, request: &Request) -> Result<Reply, ApiError> {
        let consumer = request.consumer_name.as_deref();
        Constraints::new().name(consumer, "consumerName").check()?;
        let consumer = consumer.unwrap_or_default();
        let tags = request.tags.clone().unwrap_or_default();
        tags::check(&tags)?;
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        self.run(Operation::RegisterStreamConsumer, Some(&name), || {
            let mut created_ms = 0;
            self.change_stream(&name, |scene| {
                if matches!(scene.status, Status::Creating | Status::Deleting) {
                    return Err(self.not_active(&name, scene.status));
                }
                let mut present = scene.topology.present_consumers(scene.now_ms);
                if present.any(|(other, _)| other.name == consumer) {
                    return Err(ApiError::in_use(format!(
                        "Consumer {consumer} under stream {} already exists.",
                        scene.stream.arn
                    )));
                }
                let count = scene.topology.present_consumers(scene.now_ms).count();
                if count >= limits::STREAM_MAX_CONSUMERS {
                    return Err(ApiError::limit_exceeded(format!(
                        "Stream {name} under account {} has reached the limit of {} consumers.",
                        self.home.account,
                        limits::STREAM_MAX_CONSUMERS
                    )));
                }
                created_ms = scene.now_ms;
                Ok(Some(ChangeKind::Register {
                    name: consumer.to_owned(),
                    arn: self.home.consumer_arn(&name, consumer, created_ms),
                    tags,
                    until_ms: created_ms.saturating_add(self.options().create_delay_ms),
                }))
            })?;
            let stream = self.find_by_name(&name)?;
            let topology = stream.read();
            let registered = topology.consumers.get(consumer).ok_or_else(ApiError::internal)?;
            let consumer = ConsumerDescription::of(registered, Status::Creating);
            Ok(Reply { consumer })
        })
    }
}
