//! Events of a `SubscribeToShard` call.

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

/// Returns the events of the subscription of consumer `arn` to `shard`.
pub(super) fn events(
    messages: EventReceiver<Message, MessageError>,
    arn: &str,
    shard: &ShardId,
) -> Subscription {
    event_stream::of_source(AwsSubscription { messages, arn: arn.to_owned(), shard: shard.clone() })
}

/// A live subscription.
struct AwsSubscription {
    /// Receiver on the connection.
    messages: EventReceiver<Message, MessageError>,
    /// Consumer ARN, for error messages.
    arn: String,
    /// Shard, for error messages.
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
            // Other message kinds come from a newer service and hold no records.
            if let Message::SubscribeToShardEvent(event) = message {
                return Some(call.event(event));
            }
        }
    }
}

/// Returns the name of an error that arrived as a message. The SDK keeps it only in the type.
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
        // At the end of the shard the service sends null, which the SDK turns into an empty string.
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
