//! The events of a `SubscribeToShard` call.

use super::super::api::{StreamError, Subscription, SubscriptionEvent};
use super::SILENCE_TIMEOUT;
use super::fault::AwsCall;
use crate::stream::event_stream;
use crate::stream::event_stream::EventSource;
use anabranch_model::ids::ShardId;
use aws_sdk_kinesis::error::SdkError;
use aws_sdk_kinesis::primitives::event_stream::EventReceiver;
use aws_sdk_kinesis::types::SubscribeToShardEventStream as Message;
use aws_sdk_kinesis::types::error::SubscribeToShardEventStreamError as MessageError;

/// The events of a subscription of the consumer `arn` to `shard`.
pub(super) fn events(
    messages: EventReceiver<Message, MessageError>,
    arn: &str,
    shard: &ShardId,
) -> Subscription {
    event_stream::of_source(AwsSubscription { messages, arn: arn.to_owned(), shard: shard.clone() })
}

/// A live subscription.
struct AwsSubscription {
    /// The connection.
    messages: EventReceiver<Message, MessageError>,
    /// The consumer, for messages.
    arn: String,
    /// The shard, for messages.
    shard: ShardId,
}

impl EventSource for AwsSubscription {
    async fn next(&mut self) -> Option<Result<SubscriptionEvent, StreamError>> {
        let call =
            AwsCall { operation: "SubscribeToShard", stream: &self.arn, shard: Some(&self.shard) };
        loop {
            let message = match tokio::time::timeout(SILENCE_TIMEOUT, self.messages.recv()).await {
                Err(_) => return Some(Err(call.timed_out())),
                Ok(Err(error)) => return Some(Err(call.failed_by(name_of(&error), error))),
                Ok(Ok(message)) => message?,
            };
            // A message of another kind is one that a newer service sends; it holds no record.
            if let Message::SubscribeToShardEvent(event) = message {
                return Some(call.event(event));
            }
        }
    }
}

/// The name of an error that came as a message: the SDK keeps it in the type alone.
fn name_of<R>(error: &SdkError<MessageError, R>) -> &'static str {
    match error.as_service_error() {
        Some(MessageError::ResourceNotFoundException(_)) => "ResourceNotFoundException",
        Some(MessageError::ResourceInUseException(_)) => "ResourceInUseException",
        Some(MessageError::KmsDisabledException(_)) => "KMSDisabledException",
        Some(MessageError::KmsInvalidStateException(_)) => "KMSInvalidStateException",
        Some(MessageError::KmsAccessDeniedException(_)) => "KMSAccessDeniedException",
        Some(MessageError::KmsNotFoundException(_)) => "KMSNotFoundException",
        Some(MessageError::KmsOptInRequired(_)) => "KMSOptInRequired",
        Some(MessageError::KmsThrottlingException(_)) => "KMSThrottlingException",
        Some(MessageError::InternalFailureException(_)) => "InternalFailureException",
        _ => "",
    }
}

impl AwsCall<'_> {
    fn event(
        self,
        event: aws_sdk_kinesis::types::SubscribeToShardEvent,
    ) -> Result<SubscriptionEvent, StreamError> {
        // The SDK has an empty text where the service says null, at the end of the shard.
        let continuation = match event.continuation_sequence_number.as_str() {
            "" => None,
            text => Some(self.sequence(text)?),
        };
        Ok(SubscriptionEvent {
            records: self.records(event.records)?,
            continuation,
            behind_ms: u64::try_from(event.millis_behind_latest).unwrap_or(0),
            children: self.children(event.child_shards)?,
        })
    }
}
