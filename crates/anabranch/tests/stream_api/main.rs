//! One contract, run against every implementation of `StreamApi`: all give the same replies.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "../network/mod.rs"]
mod network;
mod stage;
mod contract;
mod unreachable;
mod formats;
mod signatures;
mod environment;

use anabranch::stream::{AwsKinesis, LocalKinesis, WireFormat};
use network::Transport;
use stage::StreamFixture;

#[tokio::test]
async fn the_local_stream_in_process_keeps_the_contract() {
    let stage = StreamFixture::new().await;
    let api = LocalKinesis::new(stage.engine().clone());
    contract::check(&api, &stage).await;
}

/// Checks the contract over a transport in a format, and that the format does not change.
async fn check(wire: Transport, format: WireFormat) {
    let stage = StreamFixture::over(wire).await;
    let api = AwsKinesis::speaking(format, &stage.sdk_config());
    contract::check(&api, &stage).await;
    assert_eq!(api.format(), format, "{wire:?}: the local stream speaks it");
}

#[tokio::test]
async fn the_aws_sdk_over_http_keeps_the_contract_in_json() {
    check(Transport::Http, WireFormat::Json).await;
}

#[tokio::test]
async fn the_aws_sdk_over_http_keeps_the_contract_in_cbor() {
    check(Transport::Http, WireFormat::Cbor).await;
}

#[tokio::test]
async fn the_aws_sdk_over_tls_and_http2_keeps_the_contract_in_json() {
    check(Transport::Tls, WireFormat::Json).await;
}

#[tokio::test]
async fn the_aws_sdk_over_tls_and_http2_keeps_the_contract_in_cbor() {
    check(Transport::Tls, WireFormat::Cbor).await;
}
