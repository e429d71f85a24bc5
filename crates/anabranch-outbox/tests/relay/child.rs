//! A relay in a process of its own: this test program again, told by its environment to relay.

use crate::stage::STREAM;
use anabranch_outbox::{Database, Relay, Table};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The database; only the child's environment has it.
pub(crate) const DATABASE: &str = "ANABRANCH_TEST_OUTBOX";

/// Runs in the child only. It is killed, so it never ends by itself but when its database is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Ok(url) = std::env::var(DATABASE) else { return };
    let kinesis = anabranch::stream::aws::from_env().await.unwrap();
    let relay = Relay::new(Database::at(&url).unwrap(), Table::named("outbox").unwrap(), STREAM)
        .with_poll(Duration::from_millis(100))
        // Small, so that a kill finds rows in every state.
        .with_portion(20, 1 << 20)
        .with_max_held(100);
    let ended = relay.run(&kinesis, CancellationToken::new()).await;
    eprintln!("{ended:?}");
    std::process::exit(3);
}
