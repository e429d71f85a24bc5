//! Stopping a worker, and handing over its leases.

use crate::fleet::{LEASE_TIME_MS, LeaseFleet, STREAM, TestWorker, id};
use crate::troubled::LinkFaults;
use anabranch::event::LeaseEvent;
use anabranch::lease::StopResult;
use anabranch_model::lease::{HandOver, Layout};
use std::sync::atomic::Ordering;

#[tokio::test(start_paused = true)]
async fn a_stop_hands_everything_over_at_once() {
    let fleet = LeaseFleet::native(8);
    let a = fleet.worker("a").await;
    let b = fleet.worker("b").await;
    fleet.until("4 each", 5_000, || (a.holds(), b.holds()) == (4, 4)).await;
    fleet.pass(10_000).await;
    let start = fleet.clock.now_ms();
    assert_eq!(a.stop(5_000).await, StopResult::Left);
    let stopped = fleet.clock.now_ms() - start;
    fleet.until("b holds all", 1_000, || b.holds() == 8).await;
    let took = fleet.clock.now_ms() - start;
    println!("stopped after {stopped} ms, all taken over after {took} ms");
    assert!(took < 1_000, "{took} ms");
    assert_eq!(fleet.table().workers().count(), 1, "the worker's row is gone");
}

#[tokio::test(start_paused = true)]
async fn what_a_stopping_worker_gives_back_does_not_wait_for_its_slowest_shard() {
    let fleet = LeaseFleet::native(4);
    let a = fleet.worker("a").await;
    let b = fleet.worker("b").await;
    fleet.until("2 each", 5_000, || (a.holds(), b.holds()) == (2, 2)).await;
    fleet.pass(5_000).await;
    *a.manners.stuck.lock().unwrap() = Some(a.coordinator.leases()[0].shard.to_string());
    let (stopped, took) = tokio::join!(a.stop(8_000), async {
        fleet.until("b has the other one", 1_500, || b.holds() == 3).await
    });
    println!("taken over after {took} ms");
    assert!(
        matches!(&stopped, StopResult::Unreleased { leases } if leases.len() == 1),
        "{stopped:?}"
    );
    fleet.until("b holds all", 3 * LEASE_TIME_MS, || b.holds() == 4).await;
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_takes_less_than_a_second() {
    let fleet = LeaseFleet::native(2);
    let a = fleet.worker("a").await;
    fleet.until("a holds all", 2_000, || a.holds() == 2).await;
    fleet.pass(10_000).await;
    let b = fleet.worker("b").await;
    let took = fleet.until("1 each", 1_000, || (a.holds(), b.holds()) == (1, 1)).await;
    println!("handed over after {took} ms");
    let taken = |event: &LeaseEvent| matches!(event, LeaseEvent::LeaseTaken { .. });
    assert_eq!(fleet.count(taken), 3);
}

#[tokio::test(start_paused = true)]
async fn a_slow_drain_is_waited_for() {
    let fleet = LeaseFleet::native(2);
    let a = fleet.worker("a").await;
    fleet.until("a holds all", 2_000, || a.holds() == 2).await;
    a.manners.drain_ms.store(15_000, Ordering::Relaxed);
    let b = fleet.worker("b").await;
    let took = fleet.until("1 each", 30_000, || (a.holds(), b.holds()) == (1, 1)).await;
    assert!(took >= 15_000, "the owner was still draining after {took} ms");
}

#[tokio::test(start_paused = true)]
async fn a_stuck_handler_refuses_on_the_row_until_it_returns() {
    let fleet = LeaseFleet::native(2);
    let a = fleet.worker("a").await;
    fleet.until("a holds all", 2_000, || a.holds() == 2).await;
    *a.manners.stuck.lock().unwrap() = Some("all".into());
    let b = fleet.worker("b").await;
    let refused = || fleet.rows().iter().filter(|row| row.hand_over == HandOver::Refused).count();
    fleet.until("a refuses", 5_000, || refused() > 0).await;
    fleet.pass(60_000).await;
    assert_eq!((a.holds(), b.holds()), (2, 0), "nobody takes from a heart that beats");
    let last = |shard| fleet.watch.last(&id(shard)).unwrap();
    assert!(last(0).1 + 100 > fleet.clock.now_ms(), "the reading goes on");
    *a.manners.stuck.lock().unwrap() = None;
    fleet.until("1 each", 30_000, || (a.holds(), b.holds()) == (1, 1)).await;
    assert_eq!(refused(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_worker_leaves_in_the_middle_of_a_beat() {
    // A heartbeat is due about every three seconds and takes two here, so most stops coincide with
    // one.
    for drain_ms in (0..8_000).step_by(500) {
        let fleet = LeaseFleet::native(1);
        let a = fleet.worker("a").await;
        fleet.until("a holds it", 2_000, || a.holds() == 1).await;
        a.manners.drain_ms.store(drain_ms, Ordering::Relaxed);
        a.store.set(LinkFaults::RepliesSlow);
        assert_eq!(a.stop(20_000).await, StopResult::Left, "after a drain of {drain_ms} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_gives_back_what_was_taken_and_not_yet_answered() {
    for layout in [Layout::Native, Layout::Kcl] {
        let fleet = LeaseFleet::new(layout, 2);
        let a = fleet.worker("a").await;
        // Writes are applied at once, and their replies arrive two seconds later.
        a.store.set(LinkFaults::RepliesSlow);
        let owned = || fleet.rows().iter().filter(|row| row.owner.is_some()).count();
        fleet.until("the takes have arrived", 2_000, || owned() == 2).await;
        assert_eq!(a.holds(), 0, "no answer has come");
        assert_eq!(a.stop(10_000).await, StopResult::Left);
        assert_eq!(owned(), 0, "{layout:?}");
    }
}

/// Faults of a store while a worker stops, and how long they have lasted, in milliseconds.
const AWAY: [(LinkFaults, u64); 7] = [
    (LinkFaults::Dead, 0),
    // A heartbeat is in flight, and its row is locked.
    (LinkFaults::Dead, 25_000),
    (LinkFaults::Throttled, 0),
    (LinkFaults::Throttled, 25_000),
    (LinkFaults::RequestsLost, 0),
    (LinkFaults::RequestsLost, 25_000),
    (LinkFaults::RepliesSlow, 0),
];
const GRACE_MS: u64 = 200;
/// The grace period and one call of the store.
const STOPS_WITHIN_MS: u64 = GRACE_MS + 3_000;

/// Returns a worker with a long lease time that reads two shards and whose store is unreachable.
async fn cut_off(
    fleet: &LeaseFleet,
    lease_time_ms: u64,
    (line, since_ms): (LinkFaults, u64),
) -> TestWorker {
    let settings = LeaseFleet::settings("a").with_lease_time_ms(lease_time_ms);
    let a = fleet.try_worker(settings).await.unwrap();
    fleet.until("a holds all", 5_000, || a.holds() == 2).await;
    fleet.pass(1_000).await;
    a.store.set(line);
    fleet.pass(since_ms).await;
    a
}

#[tokio::test(start_paused = true)]
async fn a_stop_takes_its_grace_and_one_call_at_most_however_dead_the_store_is() {
    let lease_times_ms = [60_000, 3_600_000];
    for (layout, lease_time_ms) in
        [Layout::Native, Layout::Kcl].into_iter().flat_map(|it| lease_times_ms.map(|ms| (it, ms)))
    {
        for away in AWAY {
            let fleet = LeaseFleet::new(layout, 2);
            let a = cut_off(&fleet, lease_time_ms, away).await;
            let start_ms = fleet.clock.now_ms();
            let stopped = a.stop(GRACE_MS).await;
            let took_ms = fleet.clock.now_ms() - start_ms;
            let words = format!("{layout:?}, {lease_time_ms}, {away:?}: {took_ms} ms");
            assert!(took_ms <= STOPS_WITHIN_MS, "{words}");
            assert!(away.0 == LinkFaults::RepliesSlow || stopped != StopResult::Left, "{words}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_removed_within_the_grace_and_one_call_however_dead_the_store_is() {
    for away in AWAY {
        let fleet = LeaseFleet::native(2);
        let a = cut_off(&fleet, 60_000, away).await;
        let start_ms = fleet.clock.now_ms();
        let left = a.coordinator.remove_stream(&STREAM.into(), GRACE_MS).await;
        let took_ms = fleet.clock.now_ms() - start_ms;
        assert!(took_ms <= STOPS_WITHIN_MS, "{away:?}: {took_ms} ms");
        println!("{away:?}: {took_ms} ms, {} leases left", left.len());
        // The worker continues, and its row says which streams it reads once the store is back.
        a.store.set(LinkFaults::Good);
        let reads = || fleet.table().workers().next().unwrap().reads.clone();
        fleet.until("the row says so", 30_000, || reads() == Some(vec![])).await;
        assert_eq!(fleet.count(|event| matches!(event, LeaseEvent::Evicted { .. })), 0);
    }
}
