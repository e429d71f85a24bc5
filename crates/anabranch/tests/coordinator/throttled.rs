//! Fleets that start together on a store with little write capacity.

use crate::fleet::{LeaseFleet, TestWorker};
use crate::troubled::{Capacity, FaultyStore, LinkFaults};
use anabranch::event::LeaseEvent;
use anabranch_model::lease::{LeaseChange, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::task::JoinSet;

/// Starts workers together, and checks that they own all shards in the end and that none was
/// evicted.
async fn check(shards: i64, workers: u32, units_per_second: u32) {
    let fleet = LeaseFleet::native(shards);
    let capacity = Capacity::new(units_per_second);
    let start_ms = fleet.clock.now_ms();
    let mut starts = JoinSet::new();
    let fleet = std::sync::Arc::new(fleet);
    for worker in 0..workers {
        let (fleet, capacity) = (fleet.clone(), capacity.clone());
        starts.spawn(async move {
            let store = FaultyStore::new(fleet.store.clone()).with_capacity(capacity);
            fleet.worker_on(store, LeaseFleet::settings(&format!("w{worker}"))).await.unwrap()
        });
    }
    let running = starts.join_all().await;
    let owned = || running.iter().map(TestWorker::holds).sum::<usize>();
    // All rows are created and taken, each in a transaction of two units.
    let needs_ms = u64::try_from(shards).unwrap() * 4_000 / u64::from(units_per_second);
    let all = usize::try_from(shards).unwrap();
    while owned() < all {
        let now_ms = fleet.clock.now_ms() - start_ms;
        assert!(now_ms < 3 * needs_ms + 30_000, "{} of {shards} after {now_ms} ms", owned());
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let took_ms = fleet.clock.now_ms() - start_ms;
    let throttled = capacity.throttled.load(Ordering::Relaxed);
    println!(
        "{shards} shards, {workers} workers, {units_per_second} units/s: all owned after \
              {took_ms} ms, {throttled} writes throttled"
    );
    assert!(throttled > 100, "the store had room: {throttled} writes were throttled");
    fleet.pass(30_000).await;
    assert_eq!(owned(), all);
    let evicted = |event: &LeaseEvent| {
        matches!(event, LeaseEvent::Evicted { .. } | LeaseEvent::WorkerFenced { .. })
    };
    assert_eq!(fleet.count(evicted), 0, "workers were evicted");
}

/// A tenth of a DynamoDB partition, for a twentieth of 10,000 shards and a tenth of 100 workers.
#[tokio::test(start_paused = true)]
async fn a_mass_start_on_a_throttled_store_evicts_no_worker() {
    check(500, 10, 100).await;
}

/// Heartbeats take a third of the capacity.
#[tokio::test(start_paused = true)]
async fn a_mass_start_of_many_workers_on_a_throttled_store_evicts_no_worker() {
    check(100, 20, 20).await;
}

/// Heartbeats are read separately from the leases, so throttled lists hide no dead worker.
/// Throttled lists are requested less and less often.
#[tokio::test(start_paused = true)]
async fn a_dead_worker_is_replaced_although_lists_are_throttled() {
    let fleet = LeaseFleet::native(8);
    let (a, b) = (fleet.worker("a").await, fleet.worker("b").await);
    fleet.until("load is level", 30_000, || a.holds() == 4 && b.holds() == 4).await;
    fleet.pass(20_000).await;
    b.store.throttle_lists(true);
    fleet.pass(60_000).await;
    let [_, before] = b.store.reads();
    a.store.set(LinkFaults::Dead);
    fleet.until("b holds all", 30_000, || b.holds() == 8).await;
    fleet.pass(60_000).await;
    let [_, lists] = b.store.reads();
    assert!(lists - before <= 12, "{} lists of a throttled partition", lists - before);
}

/// A worker whose lists are throttled learns from refused writes, and does not send them again.
#[tokio::test(start_paused = true)]
async fn workers_whose_lists_are_throttled_ask_once_for_what_others_took() {
    const WORKERS: usize = 6;
    let fleet = LeaseFleet::native(60);
    let takes = Arc::new(AtomicUsize::new(0));
    let mut workers = Vec::new();
    for worker in 0..WORKERS {
        let store = FaultyStore::new(fleet.store.clone());
        let count = Arc::clone(&takes);
        store.fail_if(move |write| {
            if let Write::Lease { change: LeaseChange::Take { .. }, .. } = write {
                count.fetch_add(1, Ordering::Relaxed);
            }
            false
        });
        let settings = LeaseFleet::settings(&format!("w{worker}"));
        workers.push(fleet.worker_on(store, settings).await.unwrap());
    }
    let level = || workers.iter().all(|worker| worker.holds() == 10);
    fleet.until("load is level", 60_000, level).await;
    fleet.pass(30_000).await;
    for worker in &workers {
        worker.store.throttle_lists(true);
    }
    fleet.pass(10_000).await;
    takes.store(0, Ordering::Relaxed);
    workers[0].store.set(LinkFaults::Dead);
    let others = || workers[1..].iter().map(TestWorker::holds).sum::<usize>();
    fleet.until("the others hold all", 60_000, || others() == 60).await;
    fleet.pass(120_000).await;
    let sent = takes.load(Ordering::Relaxed);
    assert!(sent <= 10 * WORKERS, "{sent} takes of 10 leases");
}
