//! Findings and repairs of the audit.

use crate::fleet::{LEASE_TIME_MS, LeaseFleet, STREAM, TestWorker, id};
use crate::troubled::LinkFaults;
use anabranch::event::LeaseEvent;
use anabranch::lease::{LeaseStore, StreamSettings};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Layout, StreamChange, Write};
use anabranch_model::position::StartPosition;
use std::time::Duration;

const HALF: u128 = 1 << 127;
const HOUR_MS: u64 = 3_600_000;

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_re_created_at_run_time_is_read_no_longer() {
    let fleet = LeaseFleet::native(2);
    let a = fleet.worker("a").await;
    let b = fleet.worker("b").await;
    fleet.until("1 each", 5_000, || (a.holds(), b.holds()) == (1, 1)).await;
    fleet.delete();
    fleet.engine.clock().advance(60_000);
    fleet.create(2);
    fleet.until("nothing is held", 120_000, || (a.holds(), b.holds()) == (0, 0)).await;
    let last = [fleet.watch.last(&id(0)), fleet.watch.last(&id(1))];
    fleet.pass(120_000).await;
    assert_eq!([fleet.watch.last(&id(0)), fleet.watch.last(&id(1))], last, "no delivery since");
    assert_eq!(fleet.count(|event| matches!(event, LeaseEvent::StreamRecreated { .. })), 2);
}

/// Starts a worker whose audits are too far apart to help.
async fn unaudited(fleet: &LeaseFleet, name: &str) -> TestWorker {
    let mut settings = LeaseFleet::settings(name);
    settings.audit_interval = HOUR_MS;
    fleet.try_worker(settings).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_finds_another_stream_has_it_stopped_at_once() {
    for layout in [Layout::Native, Layout::Kcl] {
        let fleet = LeaseFleet::new(layout, 2);
        let a = unaudited(&fleet, "a").await;
        fleet.until("a reads", 60_000, || a.holds() == 2).await;
        let known_ms = fleet.engine.clock().now_ms();
        fleet.delete();
        fleet.engine.clock().advance(60_000);
        // The new stream has shard 0 again, and no shard 1.
        fleet.create(1);
        let refusal = a.coordinator.wait_refused();
        let refusal = tokio::time::timeout(Duration::from_secs(2), refusal).await;
        let words = refusal.expect("at once, not at the next audit").to_string();
        assert!(words.contains("was recreated at"), "{words}");
        assert!(words.contains(&format!("the stream created at {known_ms} ")), "{words}");
        let last = [fleet.watch.last(&id(0)), fleet.watch.last(&id(1))];
        fleet.until("nothing is held", 10_000, || a.holds() == 0).await;
        assert_eq!([fleet.watch.last(&id(0)), fleet.watch.last(&id(1))], last, "no delivery since");
        assert_eq!(fleet.count(|event| matches!(event, LeaseEvent::StreamRecreated { .. })), 1);
        let ended = fleet.rows().iter().filter(|row| row.is_ended()).count();
        assert_eq!(ended, 0, "the rows are left as they are");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_of_another_stream_is_delivered_though_a_handler_cant_be_stopped() {
    let fleet = LeaseFleet::native(2);
    let a = unaudited(&fleet, "a").await;
    fleet.until("a reads", 60_000, || a.holds() == 2).await;
    *a.manners.stuck.lock().unwrap() = Some("all".to_owned());
    fleet.delete();
    fleet.engine.clock().advance(60_000);
    // The new stream has shard 0 again, whose reader continues where it may.
    fleet.create(1);
    let refusal = tokio::time::timeout(Duration::from_secs(2), a.coordinator.wait_refused()).await;
    refusal.expect("the reader of shard 1 finds out");
    let last = fleet.watch.last(&id(0));
    fleet.pass(LEASE_TIME_MS).await;
    assert_eq!(fleet.watch.last(&id(0)), last, "no delivery since");
}

/// Returns a worker that reads "other", and read the fleet's stream until that was deleted.
async fn worker_of_a_missing_stream(fleet: &LeaseFleet) -> TestWorker {
    fleet.create_as("other", 1);
    let a = unaudited(fleet, "a").await;
    add_stream(&a, "other").await;
    fleet.until("a reads both", 60_000, || a.holds() == 3).await;
    fleet.delete();
    fleet.until("the other one is left", 10_000, || a.holds() == 1).await;
    a
}

async fn add_stream(worker: &TestWorker, name: &str) {
    let (name, start) = (StreamName::from(name), StartPosition::TrimHorizon);
    worker.coordinator.add_stream(StreamSettings { name, start }).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_deleted_is_stopped_and_others_are_read_on() {
    let fleet = LeaseFleet::native(2);
    let a = worker_of_a_missing_stream(&fleet).await;
    assert_eq!(a.coordinator.leases()[0].stream.as_str(), "other");
    assert_eq!(fleet.count(|event| matches!(event, LeaseEvent::StreamDeleted { .. })), 1);
    let refused = tokio::time::timeout(Duration::from_mins(1), a.coordinator.wait_refused()).await;
    assert!(refused.is_err(), "a stream is left: {refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_missing_stream_is_read_again_once_it_is_there_and_another_one_of_its_name_is_not() {
    for layout in [Layout::Native, Layout::Kcl] {
        for (later_ms, held) in [(0, 3), (60_000, 1)] {
            let fleet = LeaseFleet::new(layout, 2);
            let a = worker_of_a_missing_stream(&fleet).await;
            fleet.pass(60_000).await;
            // A stream of the same creation time is the same stream.
            fleet.engine.clock().advance(later_ms);
            fleet.create(2);
            fleet.pass(130_000).await;
            assert_eq!(a.holds(), held, "{layout:?}, created {later_ms} ms later");
            let back = fleet.count(|event| matches!(event, LeaseEvent::StreamRestored { .. }));
            let other = fleet.count(|event| matches!(event, LeaseEvent::StreamRecreated { .. }));
            assert_eq!([back, other], if later_ms == 0 { [1, 0] } else { [0, 1] });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_stream_that_was_removed_or_added_again_is_asked_for_no_longer() {
    const ARN: &str = "arn:aws:kinesis:us-east-1:000000000000:stream/s";
    for layout in [Layout::Native, Layout::Kcl] {
        for name in [STREAM, ARN] {
            let fleet = LeaseFleet::new(layout, 2);
            let a = worker_of_a_missing_stream(&fleet).await;
            let left = a.coordinator.remove_stream(&StreamName::from(name), 1_000).await;
            assert!(left.is_empty(), "{left:?}");
            fleet.create(2);
            fleet.pass(130_000).await;
            assert_eq!(a.holds(), 1, "{layout:?}, removed as {name}");

            let fleet = LeaseFleet::new(layout, 2);
            let a = worker_of_a_missing_stream(&fleet).await;
            // The worker's next request for it is 20 s away.
            fleet.pass(40_000).await;
            fleet.create(2);
            add_stream(&a, name).await;
            fleet.pass(130_000).await;
            let back = fleet.count(|event| matches!(event, LeaseEvent::StreamRestored { .. }));
            assert_eq!((a.holds(), back), (3, 0), "{layout:?}, added as {name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hole_is_repaired_after_three_looks() {
    let fleet = LeaseFleet::native(4);
    // The stream is marked as synced although its rows are missing.
    let stream = StreamName::from(STREAM);
    let created_ms = fleet.engine.clock().now_ms();
    for change in [
        StreamChange::NoteStart { t0_ms: created_ms, created_ms },
        StreamChange::MarkSynced { created_ms },
    ] {
        assert!(fleet.store.write(&Write::stream(&stream, change)).await.unwrap().is_done());
    }
    let a = fleet.worker("a").await;
    // The first check comes with an audit, and the others soon after it.
    fleet.until("a holds all", 100_000, || a.holds() == 4).await;
    let looks = fleet.count(|event| matches!(event, LeaseEvent::HashRangeHole { .. }));
    assert_eq!(looks, 3);
}

#[tokio::test(start_paused = true)]
async fn finished_rows_go_once_their_shard_is_gone_and_not_before() {
    let fleet = LeaseFleet::native(1);
    let a = fleet.worker("a").await;
    fleet.until("a reads", 2_000, || a.holds() == 1).await;
    fleet.split(0, HALF);
    fleet.until("the children are read", 5_000, || a.holds() == 2).await;
    fleet.pass(300_000).await;
    assert_eq!(fleet.rows().len(), 3, "the row is the tombstone of its shard");
    assert_eq!(fleet.rows()[0].owner, None, "a finished row names nobody");
    fleet.engine.clock().advance(25 * HOUR_MS);
    fleet.until("the row is gone", 120_000, || fleet.rows().len() == 2).await;
    assert_eq!(a.holds(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_was_lost_ends_and_its_heirs_are_read() {
    let fleet = LeaseFleet::native(1);
    let a = fleet.worker("a").await;
    fleet.until("a reads", 2_000, || a.holds() == 1).await;
    // No worker reads while the shard is split and trimmed.
    drop(a);
    fleet.split(0, HALF);
    fleet.engine.clock().advance(49 * HOUR_MS);
    let b = fleet.worker("b").await;
    fleet.until("the heirs are read", 4 * LEASE_TIME_MS, || b.holds() == 2).await;
    let lost = fleet
        .count(|event| matches!(event, LeaseEvent::ShardMissing { successors, .. } if successors.len() == 2));
    assert_eq!(lost, 1);
    // After a crash between the two, the loss is reported twice rather than never.
    let of_shard = fleet.events.lock().unwrap().clone().into_iter().find_map(|(_, event)| {
        let of_it = matches!(&event, LeaseEvent::ShardMissing { lease, .. } | LeaseEvent::ShardEnded { lease, .. }
            if lease.shard.as_str() == id(0));
        of_it.then_some(event)
    });
    assert!(matches!(of_shard, Some(LeaseEvent::ShardMissing { .. })), "{of_shard:?}");
    assert!(fleet.rows().iter().all(|row| row.is_ended() == (row.key.shard.as_str() == id(0))));
}

#[tokio::test(start_paused = true)]
async fn the_rows_of_gone_workers_are_removed() {
    let fleet = LeaseFleet::native(4);
    let a = fleet.worker("a").await;
    let b = fleet.worker("b").await;
    fleet.until("2 each", 5_000, || (a.holds(), b.holds()) == (2, 2)).await;
    a.store.set(LinkFaults::Dead);
    drop(a);
    fleet.until("b holds all", 3 * LEASE_TIME_MS, || b.holds() == 4).await;
    fleet.until("one row is left", 120_000, || fleet.table().workers().count() == 1).await;
    assert_eq!(fleet.count(|event| matches!(event, LeaseEvent::WorkerRowRemoved { .. })), 1);
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_fails_is_given_back_after_a_pause_and_begun_again() {
    let fleet = LeaseFleet::native(1);
    let a = fleet.worker("a").await;
    *a.manners.failing.lock().unwrap() = Some(id(0));
    fleet.pass(30_000).await;
    let begun = fleet.watch.begun().len();
    assert!((3..=6).contains(&begun), "{begun} times in 30 s, with a pause of 5 s");
}
