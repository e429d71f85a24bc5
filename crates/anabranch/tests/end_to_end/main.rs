//! Real processes over HTTP, with the AWS SDK on both sides: workers that are stopped and killed
//! while the stream is split and merged.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "../postgres_server/mod.rs"]
mod postgres_server;
mod child;
mod fleet;
mod pushed;
mod book;
mod exactly_once;
mod published;

use fleet::Fleet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_come_go_and_die_under_reshards_lose_nothing_and_keep_order() {
    let mut fleet = Fleet::start(2).await;
    fleet.spawn("a");
    fleet.spawn("b");
    fleet.rounds(10).await;
    fleet.split(0).await;
    fleet.rounds(10).await;
    fleet.signal("a", "TERM");
    assert_eq!(fleet.exit_of("a"), Some(0), "a graceful stop");
    fleet.merge(1).await;
    fleet.spawn("c");
    fleet.rounds(10).await;
    fleet.signal("b", "KILL");
    fleet.split(1).await;
    fleet.rounds(10).await;
    fleet.until_all_seen().await;
    fleet.signal("c", "TERM");
    assert_eq!(fleet.exit_of("c"), Some(0), "a graceful stop");
    fleet.check();
}
