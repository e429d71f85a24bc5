//! `DeregisterStreamConsumer`: deregisters a consumer. It is DELETING for `delete_delay_ms` and
//! then no longer exists. Its live subscriptions end at once.

use crate::change::ChangeKind;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::lifecycle::Status;
use crate::op::{ConsumerTarget, Operation};
use serde::Deserialize;

/// Request of `DeregisterStreamConsumer`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub consumer: ConsumerTarget,
}

impl Engine {
    /// Deregisters a consumer. Does nothing if it is already being deregistered.
    pub fn deregister_stream_consumer(&self, request: &Request) -> Result<(), ApiError> {
        let named = self.resolve_consumer(&request.consumer)?;
        self.run(Operation::DeregisterStreamConsumer, Some(&named.stream), || {
            self.change_stream(&named.stream, |scene| {
                let mut present = scene.topology.present_consumers(scene.now_ms);
                let found = present.find(|(consumer, _)| named.is(consumer));
                let shown = named.arn.or(named.name).unwrap_or_default();
                let (consumer, status) = found.ok_or_else(|| Self::consumer_not_found(shown))?;
                let until_ms = scene.now_ms.saturating_add(self.options().delete_delay_ms);
                let name = consumer.name.clone();
                let change = ChangeKind::Deregister { name, until_ms };
                Ok((status != Status::Deleting).then_some(change))
            })
        })
    }
}
