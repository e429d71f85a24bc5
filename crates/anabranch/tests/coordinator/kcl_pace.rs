//! Frequency at which a worker reads the whole of KCL's table, in various situations.

use crate::fleet::{LEASE_TIME_MS, LeaseFleet, TestWorker};
use crate::troubled::{FaultyStore, LinkFaults};
use anabranch::event::LeaseEvent;
use anabranch::lease::{LeaseStore, StopResult};
use anabranch_model::lease::{HandOver, Layout, Lease, LeaseChange, Nonce, WorkerId, Write};
use std::sync::atomic::Ordering;

/// Starts a worker whose store suggests a pause between two polls.
async fn paced(fleet: &LeaseFleet, name: &str, look_ms: u64, lease_time_ms: u64) -> TestWorker {
    let store = FaultyStore::new(fleet.store.clone()).with_look_ms(look_ms);
    let settings = LeaseFleet::settings(name).with_lease_time_ms(lease_time_ms);
    fleet.worker_on(store, settings).await.unwrap()
}

/// Returns how often a worker polls within a time.
async fn looks(fleet: &LeaseFleet, worker: &TestWorker, within_ms: u64) -> u64 {
    let before = worker.store.looks();
    fleet.pass(within_ms).await;
    worker.store.looks() - before
}

fn asked(fleet: &LeaseFleet) -> usize {
    fleet.count(|event| matches!(event, LeaseEvent::HandOverRequested { .. }))
}

#[tokio::test(start_paused = true)]
async fn leases_that_are_renewed_bring_no_look_forward() {
    // Poll interval of the table, lease time of the other worker, and maximum number of polls in
    // two minutes. Two of them are the audits'.
    for (look_ms, other_ms, most) in [
        (80_000, LEASE_TIME_MS, 8),
        (15_000, LEASE_TIME_MS, 10),
        (8_000, LEASE_TIME_MS, 17),
        (4_000, 1_000, 32),
        (1_700, 1_000, 72),
    ] {
        let fleet = LeaseFleet::new(Layout::Kcl, 4);
        let a = paced(&fleet, "a", look_ms, LEASE_TIME_MS).await;
        fleet.until("a holds all", 5_000, || a.holds() == 4).await;
        let b = paced(&fleet, "b", 1_000, other_ms).await;
        fleet.until("2 each", 60_000, || (a.holds(), b.holds()) == (2, 2)).await;
        fleet.pass(60_000).await;
        let looks = looks(&fleet, &a, 120_000).await;
        assert!(looks <= most, "{looks} looks in 120 s, one each {look_ms} ms was suggested");
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_drains_reads_the_table_at_its_pace() {
    let fleet = LeaseFleet::new(Layout::Kcl, 4);
    let a = fleet.worker("a").await;
    fleet.until("a holds all", 5_000, || a.holds() == 4).await;
    a.manners.drain_ms.store(15_000, Ordering::Relaxed);
    let _b = fleet.worker("b").await;
    fleet.until("b has asked", 5_000, || asked(&fleet) == 2).await;
    fleet.pass(3_000).await;
    let looks = looks(&fleet, &a, 10_000).await;
    assert_eq!(
        (a.holds(), fleet.count(|e| matches!(e, LeaseEvent::LeaseHandedOver { .. }))),
        (4, 0)
    );
    assert!(looks <= 10, "{looks} looks in 10 s of a drain, one a second is due");
}

#[tokio::test(start_paused = true)]
async fn what_comes_back_does_not_read_the_table() {
    let quarter = 1_u128 << 126;
    for throttled in [false, true] {
        let fleet = LeaseFleet::new(Layout::Kcl, 4);
        let a = paced(&fleet, "a", 9_000, LEASE_TIME_MS).await;
        fleet.until("a holds all", 5_000, || a.holds() == 4).await;
        fleet.pass(30_000).await;
        a.store.throttle_lists(throttled);
        let before = a.store.looks();
        for shard in 0..4 {
            fleet.split(shard, quarter * u128::from(shard) + quarter / 2);
            fleet.pass(1_500).await;
        }
        let looks = a.store.looks() - before;
        let ended = fleet.count(|event| matches!(event, LeaseEvent::ShardEnded { .. }));
        assert_eq!(ended, 4);
        assert!(looks <= 2, "{looks} looks in 6 s (throttled: {throttled})");
    }
}

#[tokio::test(start_paused = true)]
async fn the_owner_drains_by_what_its_renewal_shows() {
    let fleet = LeaseFleet::new(Layout::Kcl, 4);
    let a = paced(&fleet, "a", 80_000, LEASE_TIME_MS).await;
    fleet.until("a holds all", 5_000, || a.holds() == 4).await;
    fleet.pass(41_000).await;
    a.store.throttle_lists(true);
    let b = fleet.worker("b").await;
    fleet.until("b has asked", 5_000, || asked(&fleet) == 2).await;
    let before = a.store.looks();
    fleet.until("2 each", LEASE_TIME_MS / 2, || (a.holds(), b.holds()) == (2, 2)).await;
    assert!(a.store.looks() - before <= 1);
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_of_a_hundred_leases_reads_three_units_a_second_in_all() {
    let fleet = LeaseFleet::new(Layout::Kcl, 100);
    // The interval that the store suggests for 100 leases, see `dynamodb_store/cost.rs`.
    let a = paced(&fleet, "a", 1_698, LEASE_TIME_MS).await;
    fleet.until("a holds all", 5_000, || a.holds() == 100).await;
    fleet.pass(30_000).await;
    let before = a.store.milliunits();
    let seconds = 240;
    fleet.pass(seconds * 1_000).await;
    let per_second = (a.store.milliunits() - before) / seconds;
    assert!((2_500..=3_000).contains(&per_second), "{per_second} thousandths of a unit a second");
}

/// Returns a fleet in which a new worker has requested two leases of `a`, while `a` drains slowly.
async fn asked_for_two(fleet: &LeaseFleet) -> (TestWorker, TestWorker) {
    let a = fleet.worker("a").await;
    fleet.until("a holds all", 5_000, || a.holds() == 4).await;
    a.manners.drain_ms.store(8_000, Ordering::Relaxed);
    let b = fleet.worker("b").await;
    fleet.until("b has asked", 5_000, || asked(fleet) == 2).await;
    (a, b)
}

/// Returns the number of rows that a worker owns or has requested.
fn named(fleet: &LeaseFleet, id: &WorkerId) -> usize {
    let names = |row: &Lease| {
        let taker = HandOver::Requested { taker: id.clone() };
        row.owner.as_ref() == Some(id) || row.hand_over == taker
    };
    fleet.rows().into_iter().filter(names).count()
}

#[tokio::test(start_paused = true)]
async fn a_stop_on_a_throttled_table_leaves_no_name() {
    for phase_ms in (0..4_000).step_by(730) {
        let fleet = LeaseFleet::new(Layout::Kcl, 4);
        let (a, b) = asked_for_two(&fleet).await;
        b.store.throttle_lists(true);
        fleet.pass(phase_ms).await;
        let id = b.coordinator.worker();
        let from_ms = fleet.clock.now_ms();
        assert_eq!(b.stop(5_000).await, StopResult::Left);
        assert_eq!(named(&fleet, &id), 0, "{phase_ms}: {:#?}", fleet.rows());
        assert!(fleet.clock.now_ms() - from_ms < 2_000);
        fleet.until("a holds all again", 20_000, || a.holds() == 4).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_names_stay_on_the_table_has_not_left() {
    for line in [LinkFaults::Throttled, LinkFaults::Dead] {
        let fleet = LeaseFleet::new(Layout::Kcl, 4);
        let (_a, b) = asked_for_two(&fleet).await;
        b.store.set(line);
        let id = b.coordinator.worker();
        let from_ms = fleet.clock.now_ms();
        assert_eq!(b.stop(2_000).await, StopResult::LeaveFailed, "{line:?}");
        assert!(fleet.clock.now_ms() - from_ms <= 5_100);
        assert_eq!(named(&fleet, &id), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_went_elsewhere_is_no_longer_asked_for() {
    let fleet = LeaseFleet::new(Layout::Kcl, 4);
    let (a, b) = asked_for_two(&fleet).await;
    drop(a);
    // It steals nothing from a Java worker here, so it holds nothing when it stops.
    let takes =
        |write: &Write| matches!(write, Write::Lease { change: LeaseChange::Take { .. }, .. });
    b.store.fail_if(takes);
    for row in fleet.rows() {
        let change = LeaseChange::Take { taker: "ip-10-0-0-7:5b1a3c5e".into(), term: row.term };
        let take = Write::lease(&row.key, change, Nonce(1));
        assert!(fleet.store.write(&take).await.unwrap().is_done());
        fleet.watch.forget(&row.key);
    }
    fleet.pass(2_500).await;
    b.store.set(LinkFaults::Dead);
    let from_ms = fleet.clock.now_ms();
    assert_eq!(b.stop(5_000).await, StopResult::Left);
    assert!(fleet.clock.now_ms() - from_ms < 100, "it waited for leases that others have");
}
