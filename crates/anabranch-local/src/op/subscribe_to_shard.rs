//! `SubscribeToShard`: subscribes a fan-out consumer to a shard.
//!
//! A second subscription of the same consumer and shard is refused within 5 s of the first, even if
//! the first has been dropped. After 5 s it takes over, and the first ends with an error.

use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::fault::FaultSite;
use crate::lifecycle::Status;
use crate::op::get_shard_iterator::{IteratorPosition, TYPES};
use crate::op::{ConsumerTarget, Operation, Timestamp};
use crate::subscription::{Subscription, SubscriptionTerms};
use anabranch_model::ids::ShardId;
use serde::Deserialize;
use std::sync::Arc;

/// Request of `SubscribeToShard`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(rename = "ConsumerARN")]
    pub consumer_arn: Option<String>,
    pub shard_id: Option<String>,
    pub starting_position: Option<StartingPosition>,
}

/// The position at which a subscription begins.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct StartingPosition {
    #[serde(rename = "Type")]
    pub position_type: Option<String>,
    pub sequence_number: Option<String>,
    pub timestamp: Option<Timestamp>,
}

impl Engine {
    /// Begins a subscription.
    pub fn subscribe_to_shard(&self, request: &Request) -> Result<Subscription, ApiError> {
        let position = request.starting_position.clone().unwrap_or_default();
        let kind = position.position_type.as_deref();
        Constraints::new()
            .present(request.consumer_arn.as_ref(), "consumerARN")
            .name(request.shard_id.as_deref(), "shardId")
            .present(request.starting_position.as_ref(), "startingPosition")
            .present(kind.as_ref(), "startingPosition.type")
            .one_of(kind, "startingPosition.type", TYPES)
            .sequence_number(position.sequence_number.as_deref(), "startingPosition.sequenceNumber")
            .check()?;
        let operation = Operation::SubscribeToShard;
        let place = IteratorPosition {
            kind: kind.unwrap_or_default(),
            number: position.sequence_number.as_deref(),
            at: position.timestamp,
            operation,
        };
        let consumer_arn = request.consumer_arn.clone().unwrap_or_default();
        let target = ConsumerTarget {
            consumer_arn: Some(consumer_arn.clone()),
            ..ConsumerTarget::default()
        };
        let name = self.resolve_consumer(&target)?.stream;
        let shard_id = request.shard_id.as_deref().unwrap_or_default();
        let Some(index) = ShardId::from(shard_id).index() else {
            return Err(self.shard_not_found(&name, shard_id));
        };
        let site = FaultSite { operation, stream: Some(&name), shards: &[index] };
        self.run_at(site, || {
            let subscription = self.subscribe(&name, &consumer_arn, index, place)?;
            let falsely = self.faults().ends_falsely(site);
            Ok(if falsely { subscription.ending_falsely() } else { subscription })
        })
    }

    fn subscribe(
        &self,
        name: &str,
        consumer_arn: &str,
        index: u32,
        place: IteratorPosition<'_>,
    ) -> Result<Subscription, ApiError> {
        let stream = self.find_by_name(name)?;
        let now_ms = self.now_ms();
        let topology = stream.read();
        match topology.status(now_ms) {
            Some(Status::Active | Status::Updating) => {}
            Some(status) => return Err(self.not_active(name, status)),
            None => return Err(self.stream_not_found(name)),
        }
        let consumer = topology.present_consumers(now_ms).find(|(c, _)| c.arn == consumer_arn);
        match consumer.map(|(_, status)| status) {
            None => return Err(Self::consumer_not_found(consumer_arn)),
            Some(Status::Active | Status::Updating) => {}
            Some(status) => {
                return Err(ApiError::in_use(format!(
                    "Consumer {consumer_arn} not ACTIVE, instead in state {}",
                    status.name()
                )));
            }
        }
        let state = topology
            .listed(index, now_ms)
            .ok_or_else(|| self.shard_does_not_exist(name, ShardId::from_index(index).as_str()))?;
        let shard = Arc::clone(&state.shard);
        let counter = self.place(name, &shard, place, now_ms)?;
        drop(topology);
        let options = self.options();
        let terms = SubscriptionTerms {
            max_ms: options.subscription_max_ms,
            heartbeat_ms: options.heartbeat_ms,
            paced: self.limits_enforced(),
        };
        let clock = self.clock().clone();
        Subscription::begin(stream, shard, consumer_arn.to_owned(), counter, clock, terms)
    }
}
