//! KCL's layout: leases beat one by one, and what is not owned is taken as Java takes it.

use crate::fleet::{Fleet, LEASE_TIME_MS};
use crate::troubled::Line;
use anabranch::event::LeaseEvent;
use anabranch::lease::Stopped;
use anabranch_model::lease::Layout;

#[tokio::test(start_paused = true)]
async fn leases_are_stolen_one_by_one_until_the_fleet_is_level() {
    let fleet = Fleet::new(Layout::Kcl, 4);
    let a = fleet.worker("a").await;
    fleet.until("a holds all", 5_000, || a.holds() == 4).await;
    let b = fleet.worker("b").await;
    fleet.until("2 each", 120_000, || (a.holds(), b.holds()) == (2, 2)).await;
    fleet.pass(120_000).await;
    assert_eq!((a.holds(), b.holds()), (2, 2));
    let counters: u64 = fleet.rows().iter().map(|row| row.term).sum();
    fleet.pass(LEASE_TIME_MS).await;
    let later: u64 = fleet.rows().iter().map(|row| row.term).sum();
    assert!(later >= counters + 8, "each lease is its own heart: {counters} to {later}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_gives_leases_back_and_a_silent_worker_loses_them() {
    let fleet = Fleet::new(Layout::Kcl, 4);
    let a = fleet.worker("a").await;
    fleet.until("a holds all", 5_000, || a.holds() == 4).await;
    let b = fleet.worker("b").await;
    fleet.until("2 each", 120_000, || (a.holds(), b.holds()) == (2, 2)).await;
    b.store.set(Line::Dead);
    fleet.until("b has lost its leases", 2 * LEASE_TIME_MS, || b.holds() == 0).await;
    fleet.until("a holds all again", 6 * LEASE_TIME_MS, || a.holds() == 4).await;
    assert_eq!(a.stop(5_000).await, Stopped::Left);
    assert!(fleet.rows().iter().all(|row| row.owner.is_none()), "{:?}", fleet.rows());
    assert!(fleet.count(|event| matches!(event, LeaseEvent::Lost { .. })) >= 2);
}

#[tokio::test(start_paused = true)]
async fn a_throttled_store_costs_nothing_within_the_lease_time() {
    let fleet = Fleet::new(Layout::Kcl, 4);
    let a = fleet.worker("a").await;
    fleet.until("a holds all", 5_000, || a.holds() == 4).await;
    for _ in 0..3 {
        a.store.set(Line::Throttled);
        fleet.pass(LEASE_TIME_MS / 2).await;
        a.store.set(Line::Good);
        fleet.pass(LEASE_TIME_MS).await;
    }
    assert_eq!(a.holds(), 4);
    assert_eq!(fleet.count(|event| matches!(event, LeaseEvent::Lost { .. })), 0);
}
