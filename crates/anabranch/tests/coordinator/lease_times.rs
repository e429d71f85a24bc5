//! Workers of one fleet with different lease times: each is judged by its own.

use crate::fleet::{LEASE_TIME_MS, LeaseFleet, TestWorker, id};
use crate::troubled::LinkFaults;
use anabranch::event::LeaseEvent;
use anabranch::lease::StopResult;
use anabranch_model::lease::Layout;

/// A lease time with which a worker with [`LEASE_TIME_MS`] could fence its owner between two
/// heartbeats.
const LONG_MS: u64 = 6 * LEASE_TIME_MS;

async fn worker(fleet: &LeaseFleet, name: &str, lease_time_ms: u64) -> TestWorker {
    fleet.try_worker(LeaseFleet::settings(name).with_lease_time_ms(lease_time_ms)).await.unwrap()
}

/// Asserts that no worker was fenced or evicted, and that none lost a lease.
fn nothing_was_lost(fleet: &LeaseFleet) {
    use LeaseEvent::{Evicted, LeaseLost, WorkerFenced};
    let events = fleet.events.lock().unwrap();
    let lost = |(_, event): &&(u64, LeaseEvent)| {
        matches!(event, WorkerFenced { .. } | Evicted { .. } | LeaseLost { .. })
    };
    let lost: Vec<_> = events.iter().filter(lost).collect();
    assert!(lost.is_empty(), "{} events, the first: {:?}", lost.len(), lost[0]);
}

#[tokio::test(start_paused = true)]
async fn healthy_workers_with_different_lease_times_never_fence_each_other() {
    let fleet = LeaseFleet::native(8);
    let a = worker(&fleet, "a", LONG_MS).await;
    let b = worker(&fleet, "b", LEASE_TIME_MS).await;
    fleet.until("4 each", 5_000, || (a.holds(), b.holds()) == (4, 4)).await;
    fleet.pass(10 * LONG_MS).await;
    nothing_was_lost(&fleet);
    assert_eq!((a.holds(), b.holds()), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn a_silent_worker_keeps_its_leases_for_its_own_lease_time() {
    for (of_silent_ms, of_watcher_ms) in [(LONG_MS, LEASE_TIME_MS), (LEASE_TIME_MS, LONG_MS)] {
        let fleet = LeaseFleet::native(4);
        let a = worker(&fleet, "a", of_silent_ms).await;
        let b = worker(&fleet, "b", of_watcher_ms).await;
        fleet.until("2 each", 5_000, || (a.holds(), b.holds()) == (2, 2)).await;
        fleet.pass(LONG_MS).await;
        let silent = a.coordinator.leases();
        a.store.set(LinkFaults::Dead);
        let cut_ms = fleet.clock.now_ms();
        // Its last heartbeat arrived up to a third of its lease time before.
        let most_ms = of_silent_ms * 5 / 4;
        let took = fleet.until("b holds all", most_ms, || b.holds() == 4).await;
        assert!(took >= of_silent_ms / 2, "taken over after {took} ms");
        let events = fleet.events.lock().unwrap();
        let taken = |event: &LeaseEvent| matches!(event, LeaseEvent::LeaseTaken { lease, .. } if silent.contains(lease));
        let first = events.iter().find(|(ms, event)| *ms >= cut_ms && taken(event)).unwrap().0;
        println!("{of_silent_ms} ms watched by {of_watcher_ms} ms: {} ms", first - cut_ms);
    }
}

#[tokio::test(start_paused = true)]
async fn on_kcls_table_no_lease_of_a_healthy_worker_is_taken_whatever_its_lease_time() {
    for (of_a_ms, of_b_ms) in [(LONG_MS, LEASE_TIME_MS), (LEASE_TIME_MS, LONG_MS)] {
        let fleet = LeaseFleet::new(Layout::Kcl, 8);
        let a = worker(&fleet, "a", of_a_ms).await;
        fleet.until("a holds all", 5_000, || a.holds() == 8).await;
        let b = worker(&fleet, "b", of_b_ms).await;
        fleet.until("4 each", 5_000, || (a.holds(), b.holds()) == (4, 4)).await;
        let taken = || fleet.count(|event| matches!(event, LeaseEvent::LeaseTaken { .. }));
        let before = taken();
        fleet.pass(10 * LONG_MS).await;
        nothing_was_lost(&fleet);
        assert_eq!((a.holds(), b.holds(), taken()), (4, 4, before));
    }
}

/// A rolling change of the lease time and back, with slow drains: each worker is replaced by one
/// with the other lease time.
#[tokio::test(start_paused = true)]
async fn a_rolling_change_of_the_lease_time_costs_nothing() {
    rolling_change(Layout::Native).await;
}

#[tokio::test(start_paused = true)]
async fn a_rolling_change_of_the_lease_time_costs_nothing_on_kcls_table() {
    rolling_change(Layout::Kcl).await;
}

async fn rolling_change(layout: Layout) {
    let fleet = LeaseFleet::new(layout, 9);
    let mut workers = Vec::new();
    for name in ["a1", "b1", "c1"] {
        workers.push(worker(&fleet, name, LONG_MS).await);
    }
    let level = |workers: &[TestWorker]| workers.iter().all(|worker| worker.holds() == 3);
    fleet.until("3 each", 10_000, || level(&workers)).await;
    for (round, lease_time_ms) in [(2, LEASE_TIME_MS), (3, LONG_MS)] {
        for name in ["a", "b", "c"] {
            // Long enough for the shorter lease time to end between two heartbeats of the longer.
            fleet.pass(LONG_MS).await;
            let old = workers.remove(0);
            old.manners.drain_ms.store(2_000, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(old.stop(5_000).await, StopResult::Left);
            workers.push(worker(&fleet, &format!("{name}{round}"), lease_time_ms).await);
            fleet.until("3 each again", 10_000, || level(&workers)).await;
        }
    }
    fleet.pass(2 * LONG_MS).await;
    nothing_was_lost(&fleet);
    assert!(level(&workers));
    let now_ms = fleet.clock.now_ms();
    let reads = |shard| fleet.watch.last(&id(shard)).is_some_and(|(_, ms)| ms + 100 > now_ms);
    assert!((0..9).all(reads), "every shard is delivered");
}

/// A worker that crashed and starts again with a shorter lease time waits for its predecessor.
#[tokio::test(start_paused = true)]
async fn a_restart_under_the_same_name_waits_for_the_lease_time_of_the_crashed_one() {
    let fleet = LeaseFleet::native(2);
    let before = worker(&fleet, "a", LONG_MS).await;
    fleet.until("it holds all", 2_000, || before.holds() == 2).await;
    fleet.pass(LONG_MS).await;
    drop(before);
    let after = worker(&fleet, "a", LEASE_TIME_MS).await;
    let took = fleet.until("it holds all again", 2 * LONG_MS, || after.holds() == 2).await;
    assert!((LONG_MS / 2..LONG_MS * 5 / 4).contains(&took), "{took} ms");
}
