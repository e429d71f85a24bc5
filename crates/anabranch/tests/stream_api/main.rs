//! Whoever implements the stream seam gives the same answers: one contract, run against each.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod stage;
mod contract;
mod unreachable;
mod environment;

use anabranch::stream::{AwsKinesis, LocalKinesis};
use stage::Stage;

#[tokio::test]
async fn the_local_stream_in_process_keeps_the_contract() {
    let stage = Stage::new().await;
    let api = LocalKinesis::new(stage.engine().clone());
    contract::check(&api, &stage).await;
}

#[tokio::test]
async fn the_aws_sdk_over_http_keeps_the_contract() {
    let stage = Stage::new().await;
    let api = AwsKinesis::new(&stage.sdk_config());
    contract::check(&api, &stage).await;
}
