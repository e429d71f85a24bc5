//! A relay in its own process: this test program again, switched to relaying by its environment.

use crate::stage::STREAM;
use anabranch::producer::Aggregation;
use anabranch_local::Local;
use anabranch_outbox::{Database, OutboxTable, Relay};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Database URL, set only in the child's environment.
const DATABASE: &str = "ANABRANCH_TEST_OUTBOX";
/// Takeover timeout in milliseconds, for a relay that sends one row at a time.
const TAKEOVER: &str = "ANABRANCH_TEST_TAKEOVER_MS";

/// Starts a relay. With a takeover timeout, it sends one row at a time.
pub(crate) fn spawn(url: &str, local: &Local, takeover: Option<Duration>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    if let Some(takeover) = takeover {
        command.env(TAKEOVER, takeover.as_millis().to_string());
    }
    command
        .args(["--exact", "child::child", "--nocapture"])
        .env(DATABASE, url)
        .env("AWS_ENDPOINT_URL_KINESIS", local.endpoint())
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "local")
        .env("AWS_SECRET_ACCESS_KEY", "local")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Runs in the child only. It runs until it is killed, or ends by itself when its database is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Ok(url) = std::env::var(DATABASE) else { return };
    let kinesis = anabranch::stream::aws::from_env().await.unwrap();
    let mut relay = Relay::new(
        Database::from_url(&url).unwrap(),
        OutboxTable::named("outbox").unwrap(),
        STREAM,
    )
    .with_poll(Duration::from_millis(100));
    relay = match std::env::var(TAKEOVER) {
        Ok(ms) => relay
            .with_takeover_timeout(Duration::from_millis(ms.parse().unwrap()))
            .with_producer(|producer| producer.with_aggregation(Aggregation::Off)),
        // Small limits, so that a kill finds rows in every state.
        Err(_) => relay.with_read_limit(20, 1 << 20).with_max_held(100),
    };
    let ended = relay.run(&kinesis, CancellationToken::new()).await;
    eprintln!("{ended:?}");
    std::process::exit(3);
}
