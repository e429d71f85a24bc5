//! Delays by fault rules: a request waits before the engine sees it.

use serde::Deserialize;

use super::target::Encoding;
use crate::engine::Engine;
use crate::op::StreamTarget;
use crate::wire::{cbor, read_json};

/// The fields by which a rule may choose a request.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct Fields {
    stream_name: Option<String>,
    #[serde(rename = "StreamARN")]
    stream_arn: Option<String>,
    shard_id: Option<String>,
    shard_to_split: Option<String>,
    shard_to_merge: Option<String>,
    shard_iterator: Option<String>,
}

/// Waits as long as the rules say, by the engine's clock. Without rules it costs nothing.
pub(super) async fn hold(engine: &Engine, operation: &str, encoding: Encoding, body: &[u8]) {
    if engine.faults().list().is_empty() {
        return;
    }
    let Ok(operation) = operation.parse() else { return };
    // A body that can't be read is refused later, with the reason.
    let fields: Fields = match encoding {
        Encoding::Json => read_json(body).unwrap_or_default(),
        Encoding::Cbor => cbor::value::from_cbor(body)
            .ok()
            .and_then(|fields| serde_json::from_value(fields).ok())
            .unwrap_or_default(),
    };
    let stream = StreamTarget { stream_name: fields.stream_name, stream_arn: fields.stream_arn };
    let shard = [fields.shard_id, fields.shard_to_split, fields.shard_to_merge];
    let shard = shard.into_iter().flatten().next();
    let iterator = fields.shard_iterator.as_deref();
    let ms = engine.delay_ms(operation, &stream.as_ref(), shard.as_deref(), iterator);
    if ms > 0 {
        let clock = engine.clock();
        clock.sleep_until(clock.now_ms().saturating_add(ms)).await;
    }
}
