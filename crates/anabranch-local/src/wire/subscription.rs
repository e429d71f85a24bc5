//! Frames of a subscription: events as JSON, and the error that ends it.

use super::{event_stream, json, records};
use crate::error::ApiError;
use crate::subscription::SubscriptionEvent;

/// Bytes of an event apart from its records.
const FRAME_BYTES: usize = 1024;

/// Encodes the frame of one event.
pub(crate) fn event(event: &SubscriptionEvent) -> Vec<u8> {
    let mut out = Vec::with_capacity(FRAME_BYTES + records::json_room(&event.records));
    out.extend_from_slice(b"{\"Records\":");
    records::write_json(&mut out, &event.records);
    if let Some(number) = &event.continuation {
        out.extend_from_slice(b",\"ContinuationSequenceNumber\":\"");
        number.write_digits(&mut out);
        out.push(b'"');
    }
    out.extend_from_slice(b",\"MillisBehindLatest\":");
    json::number(&mut out, event.millis_behind_latest);
    if !event.child_shards.is_empty() {
        out.extend_from_slice(b",\"ChildShards\":");
        serde_json::to_writer(&mut out, &event.child_shards).expect("child shards are JSON");
    }
    out.push(b'}');
    event_stream::event("SubscribeToShardEvent", &out)
}

/// Encodes the frame of the error that ends a subscription. The service's model has no
/// `InternalFailure` for it.
pub(crate) fn failure(error: &ApiError) -> Vec<u8> {
    let kind = match error.kind {
        crate::error::ErrorKind::InternalFailure => "InternalFailureException",
        kind => kind.name(),
    };
    let body = serde_json::json!({"message": error.message}).to_string();
    event_stream::exception(kind, body.as_bytes())
}
