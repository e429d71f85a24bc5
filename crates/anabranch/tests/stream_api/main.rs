//! Whoever implements the stream seam gives the same answers: one contract, run against each.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod stage;
mod contract;
mod unreachable;
mod formats;
mod signatures;
mod environment;

use anabranch::stream::{AwsKinesis, LocalKinesis, WireFormat};
use stage::Stage;

#[tokio::test]
async fn the_local_stream_in_process_keeps_the_contract() {
    let stage = Stage::new().await;
    let api = LocalKinesis::new(stage.engine().clone());
    contract::check(&api, &stage).await;
}

#[tokio::test]
async fn the_aws_sdk_over_http_keeps_the_contract_in_json() {
    let stage = Stage::new().await;
    let api = AwsKinesis::speaking(WireFormat::Json, &stage.sdk_config());
    contract::check(&api, &stage).await;
    assert_eq!(api.format(), WireFormat::Json);
}

#[tokio::test]
async fn the_aws_sdk_over_http_keeps_the_contract_in_cbor() {
    let stage = Stage::new().await;
    let api = AwsKinesis::speaking(WireFormat::Cbor, &stage.sdk_config());
    contract::check(&api, &stage).await;
    assert_eq!(api.format(), WireFormat::Cbor, "the local stream speaks it");
}
