//! Whoever implements the stream seam gives the same answers: one contract, run against each.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod contract;
mod stage;

use anabranch::stream::LocalKinesis;
use stage::Stage;

#[tokio::test]
async fn the_local_stream_in_process_keeps_the_contract() {
    let stage = Stage::new().await;
    let api = LocalKinesis::new(stage.engine().clone());
    contract::check(&api, &stage).await;
}
