//! Real processes over HTTP, with the AWS SDK on both sides: workers that are stopped and killed
//! while the stream is split and merged.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "../postgres_server/mod.rs"]
mod postgres_server;
#[path = "../network/mod.rs"]
mod network;
mod child;
mod fleet;
mod pushed;
mod book;
mod exactly_once;
mod published;
#[path = "../dynamodb_store/server.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod dynamodb_server;
mod mock;
mod examples;

use fleet::ProcessFleet;
use network::Transport;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_come_go_and_die_under_reshards_lose_nothing_and_keep_order() {
    come_go_and_die(Transport::Http).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_come_go_and_die_over_tls_and_http2_lose_nothing_and_keep_order() {
    come_go_and_die(Transport::Tls).await;
}

async fn come_go_and_die(wire: Transport) {
    let mut fleet = ProcessFleet::start(wire, 2).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_was_frozen_for_longer_than_its_lease_delivers_nothing_that_another_owns() {
    freeze(Transport::Http).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_was_frozen_over_tls_and_http2_delivers_nothing_that_another_owns() {
    freeze(Transport::Tls).await;
}

async fn freeze(wire: Transport) {
    let mut fleet = ProcessFleet::start(wire, 2).await;
    fleet.spawn("zombie");
    fleet.rounds(10).await;
    fleet.until_all_seen().await;
    fleet.spawn("other");
    fleet.rounds(5).await;
    // In the middle of its work.
    fleet.signal("zombie", "STOP");
    fleet.rounds(50).await;
    // The other one has taken over everything, and completed it.
    fleet.until_all_seen().await;
    let before = fleet.delivered();
    fleet.signal("zombie", "CONT");
    fleet.rounds(30).await;
    fleet.until_all_seen().await;
    for name in ["zombie", "other"] {
        fleet.signal(name, "TERM");
        assert_eq!(fleet.exit_of(name), Some(0), "{name} stops in order");
    }
    let after = fleet.delivered();
    let again = after[before.len()..].iter().filter(|(key, number, _)| {
        before.iter().any(|(done, of_it, _)| (done, of_it) == (key, number))
    });
    // A handler call that the signal interrupted may complete. It started in time.
    let again: Vec<_> = again.collect();
    assert!(again.len() <= 2, "delivered again after waking: {again:?}");
    let taken = before.iter().rev().take(20).all(|(_, _, worker)| worker == "other");
    assert!(taken, "the other one had taken over");
    fleet.check();
}
