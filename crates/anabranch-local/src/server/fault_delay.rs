//! Delays by fault rules, before the engine sees a request.

use std::borrow::Cow;

use serde::Deserialize;

use super::target::Encoding;
use crate::arn;
use crate::engine::{Engine, StreamRef};
use crate::error::ApiError;
use crate::op::{self, Operation};
use crate::wire;

/// The fields by which a rule may select a request.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct FaultFields {
    stream_name: Option<String>,
    #[serde(rename = "StreamARN")]
    stream_arn: Option<String>,
    shard_id: Option<String>,
    shard_to_split: Option<String>,
    shard_to_merge: Option<String>,
    shard_iterator: Option<String>,
    next_token: Option<String>,
    #[serde(rename = "ConsumerARN")]
    consumer_arn: Option<String>,
    #[serde(rename = "ResourceARN")]
    resource_arn: Option<String>,
}

impl FaultFields {
    /// Returns the stream of the request, from its name or from any of the ARNs.
    fn stream(&self) -> StreamRef<'_> {
        let arns = [&self.stream_arn, &self.consumer_arn, &self.resource_arn];
        let mut arns = arns.into_iter().flatten().filter_map(|arn| arn::parse(arn));
        let name = self.stream_name.as_deref().or_else(|| arns.next().map(|arn| arn.stream));
        StreamRef { name: name.map(Cow::Borrowed), arn: None }
    }
}

/// Waits by the engine's clock as long as the rules say. Returns at once if there are no rules.
pub(super) async fn delay(engine: &Engine, operation: &str, encoding: Encoding, body: &[u8]) {
    if engine.faults().list().is_empty() {
        return;
    }
    let Ok(operation) = operation.parse() else { return };
    // A body that cannot be read is refused later, with the reason.
    let ms = match operation {
        Operation::PutRecords => put_records(encoding, body)
            .map(|put| engine.put_delay_ms(operation, &put.stream, &put.records)),
        Operation::PutRecord => put_record(encoding, body)
            .map(|put| engine.put_delay_ms(operation, &put.stream, &[put.entry])),
        _ => Ok(other(engine, operation, &fields(encoding, body))),
    };
    let ms = ms.unwrap_or(0);
    if ms > 0 {
        let clock = engine.clock();
        clock.sleep_until(clock.now_ms().saturating_add(ms)).await;
    }
}

fn put_records(encoding: Encoding, body: &[u8]) -> Result<op::put_records::Request<'_>, ApiError> {
    match encoding {
        Encoding::Json => wire::put_records::from_json(body),
        Encoding::Cbor => wire::put_records::from_cbor(body),
    }
}

fn put_record(encoding: Encoding, body: &[u8]) -> Result<op::put_record::Request<'_>, ApiError> {
    match encoding {
        Encoding::Json => wire::put_record::from_json(body),
        Encoding::Cbor => wire::put_record::from_cbor(body),
    }
}

fn fields(encoding: Encoding, body: &[u8]) -> FaultFields {
    match encoding {
        Encoding::Json => wire::read_json(body).unwrap_or_default(),
        Encoding::Cbor => wire::cbor::value::from_cbor(body)
            .ok()
            .and_then(|fields| serde_json::from_value(fields).ok())
            .unwrap_or_default(),
    }
}

/// Returns the delay of a request that has no records, in milliseconds.
fn other(engine: &Engine, operation: Operation, fields: &FaultFields) -> u64 {
    let shards = [&fields.shard_id, &fields.shard_to_split, &fields.shard_to_merge];
    let shard = shards.into_iter().flatten().next();
    let iterator = fields.shard_iterator.as_deref();
    // Later pages of a shard list name their stream only in the token.
    let token = fields.next_token.as_deref().filter(|_| operation == Operation::ListShards);
    let listed = token.and_then(|token| engine.listed_stream(token));
    let stream = listed.as_deref().map_or_else(|| fields.stream(), StreamRef::named);
    engine.delay_ms(operation, &stream, shard.map(String::as_str), iterator)
}
