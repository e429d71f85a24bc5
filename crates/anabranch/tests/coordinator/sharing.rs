//! Distribution of the leases in a fleet, and the effects of a silent worker.

use crate::fleet::{LEASE_TIME_MS, LeaseFleet, STREAM, id};
use crate::troubled::{FaultyStore, LinkFaults};
use anabranch::event::LeaseEvent;
use anabranch::lease::{LeaseStore, StreamSettings};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::plan::Balance;
use anabranch_model::lease::{LeaseChange, Nonce, Write};
use anabranch_model::position::StartPosition;

#[tokio::test(start_paused = true)]
async fn one_worker_takes_all_and_two_share_evenly() {
    let fleet = LeaseFleet::native(8);
    let a = fleet.worker("a").await;
    let took = fleet.until("a holds all", 2_000, || a.holds() == 8).await;
    println!("a took 8 leases in {took} ms");
    let b = fleet.worker("b").await;
    let took = fleet.until("4 each", 3_000, || (a.holds(), b.holds()) == (4, 4)).await;
    println!("b had its 4 leases by hand-over in {took} ms");
    fleet.pass(60_000).await;
    assert_eq!((a.holds(), b.holds()), (4, 4), "nothing moves once the fleet is level");
    assert_eq!(fleet.count(|event| matches!(event, LeaseEvent::LeaseHandedOver { .. })), 4);
    assert_eq!(fleet.count(|event| matches!(event, LeaseEvent::LeaseLost { .. })), 0);
}

/// As on DynamoDB, where a query can miss a transaction whose version is visible already.
#[tokio::test(start_paused = true)]
async fn a_list_that_is_older_than_the_version_before_it_delays_a_hand_over_by_seconds_only() {
    let fleet = LeaseFleet::native(8);
    let late = FaultyStore::new(fleet.store.clone()).with_late_lists(300);
    let a = fleet.worker_on(late, LeaseFleet::settings("a")).await.unwrap();
    fleet.until("a holds all", 10_000, || a.holds() == 8).await;
    fleet.pass(5_000).await;
    let b = fleet.worker("b").await;
    let took = fleet.until("4 each", 8_000, || (a.holds(), b.holds()) == (4, 4)).await;
    println!("b had its 4 leases in {took} ms");
}

#[tokio::test(start_paused = true)]
async fn a_silent_worker_is_fenced_and_its_leases_taken_after_the_lease_time() {
    let fleet = LeaseFleet::native(4);
    let a = fleet.worker("a").await;
    fleet.until("a holds all", 2_000, || a.holds() == 4).await;
    let b = fleet.worker("b").await;
    fleet.until("2 each", 3_000, || (a.holds(), b.holds()) == (2, 2)).await;
    a.store.set(LinkFaults::Dead);
    let start = fleet.clock.now_ms();
    fleet.until("b holds all", 2 * LEASE_TIME_MS, || b.holds() == 4).await;
    let took = fleet.clock.now_ms() - start;
    assert!(took >= LEASE_TIME_MS / 2, "nobody takes from a worker that may deliver: {took} ms");
    println!("taken after {took} ms");
    // It comes back under another id, and gets its part again.
    let id = a.coordinator.worker();
    a.store.set(LinkFaults::Good);
    fleet.until("2 each again", 2 * LEASE_TIME_MS, || (a.holds(), b.holds()) == (2, 2)).await;
    assert_ne!(a.coordinator.worker(), id);
}

#[tokio::test(start_paused = true)]
async fn a_throttled_store_costs_nothing_within_the_lease_time() {
    let fleet = LeaseFleet::native(4);
    let a = fleet.worker("a").await;
    fleet.until("a holds all", 2_000, || a.holds() == 4).await;
    let b = fleet.worker("b").await;
    fleet.until("2 each", 3_000, || (a.holds(), b.holds()) == (2, 2)).await;
    let before = (a.coordinator.worker(), a.coordinator.leases(), b.coordinator.leases());
    for _ in 0..3 {
        a.store.set(LinkFaults::Throttled);
        fleet.pass(LEASE_TIME_MS / 2).await;
        a.store.set(LinkFaults::Good);
        fleet.pass(LEASE_TIME_MS).await;
    }
    let after = (a.coordinator.worker(), a.coordinator.leases(), b.coordinator.leases());
    assert_eq!(before, after);
    assert_eq!(fleet.count(|event| matches!(event, LeaseEvent::LeaseLost { .. })), 0);
}

#[tokio::test(start_paused = true)]
async fn lost_replies_cost_nothing() {
    let fleet = LeaseFleet::native(4);
    let a = fleet.worker("a").await;
    a.store.set(LinkFaults::RepliesLost);
    let b = fleet.worker("b").await;
    b.store.set(LinkFaults::RepliesLost);
    fleet.until("2 each", 20_000, || (a.holds(), b.holds()) == (2, 2)).await;
    fleet.pass(60_000).await;
    assert_eq!((a.holds(), b.holds()), (2, 2));
    assert_eq!(fleet.count(|event| matches!(event, LeaseEvent::Evicted { .. })), 0);
    assert_eq!(fleet.count(|event| matches!(event, LeaseEvent::LeaseLost { .. })), 0);
}

#[tokio::test(start_paused = true)]
async fn delivery_pauses_before_the_lease_time_is_over_and_goes_on_after_a_beat() {
    let fleet = LeaseFleet::native(1);
    let a = fleet.worker("a").await;
    fleet.until("a delivers", 2_000, || fleet.watch.last(&id(0)).is_some()).await;
    a.store.set(LinkFaults::Throttled);
    let cut = fleet.clock.now_ms();
    fleet.pass(LEASE_TIME_MS - LEASE_TIME_MS / 8).await;
    let (_, last) = fleet.watch.last(&id(0)).unwrap();
    assert!(last < cut + LEASE_TIME_MS * 8 / 10, "delivered {} ms after the cut", last - cut);
    a.store.set(LinkFaults::Dead);
    fleet.pass(3 * LEASE_TIME_MS).await;
    let (before, paused) = fleet.watch.last(&id(0)).unwrap();
    assert!(paused < cut + LEASE_TIME_MS * 8 / 10);
    a.store.set(LinkFaults::Good);
    fleet
        .until("a delivers again", 3 * LEASE_TIME_MS, || {
            fleet.watch.last(&id(0)).unwrap().1 > paused + 1
        })
        .await;
    assert_ne!(fleet.watch.last(&id(0)).unwrap().0, before, "it is another worker by now");
}

#[tokio::test(start_paused = true)]
async fn the_own_deadline_counts_from_the_sending_of_the_beat() {
    let fleet = LeaseFleet::native(1);
    let a = fleet.worker("a").await;
    fleet.until("a delivers", 2_000, || fleet.watch.last(&id(0)).is_some()).await;
    a.store.set(LinkFaults::RepliesSlow);
    fleet.pass(5 * LEASE_TIME_MS).await;
    // The connection breaks when a heartbeat has just been answered, two seconds after it was
    // applied.
    let counter = || fleet.table().workers().next().unwrap().counter;
    let before = counter();
    fleet.until("a beat is applied", LEASE_TIME_MS, || counter() > before).await;
    let applied = fleet.clock.now_ms();
    fleet.pass(2_100).await;
    a.store.set(LinkFaults::Dead);
    fleet.pass(3 * LEASE_TIME_MS).await;
    assert_eq!(counter(), before + 1);
    let (_, last) = fleet.watch.last(&id(0)).unwrap();
    let late = last - applied;
    assert!(late < LEASE_TIME_MS * 8 / 10, "delivered {late} ms after the beat was sent");
    assert!(late > LEASE_TIME_MS / 2, "it had been answered: {late} ms");
}

#[tokio::test(start_paused = true)]
async fn a_lease_goes_at_once_to_a_worker_that_reads_its_stream() {
    let fleet = LeaseFleet::native(4);
    fleet.create_as("t", 6);
    let a = fleet.worker("a").await;
    let both = LeaseFleet::settings("b").with_stream("t", StartPosition::TrimHorizon);
    let b = fleet.try_worker(both).await.unwrap();
    let held = || (a.holds(), b.holds());
    fleet.until("t is b's, and s is shared", LEASE_TIME_MS, || held() == (2, 8)).await;
    let (name, start) = (StreamName::from("t"), StartPosition::TrimHorizon);
    a.coordinator.add_stream(StreamSettings { name: name.clone(), start }).await.unwrap();
    fleet.until("a reads t too", LEASE_TIME_MS, || held() == (5, 5)).await;
    assert_eq!(a.coordinator.remove_stream(&name, 5_000).await, []);
    fleet.until("and no longer", LEASE_TIME_MS, || held() == (2, 8)).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_comes_after_its_stream_was_removed_is_given_back() {
    let fleet = LeaseFleet::native(2);
    fleet.create_as("t", 2);
    let both = LeaseFleet::settings("a").with_stream("t", StartPosition::TrimHorizon);
    let a = fleet.try_worker(both).await.unwrap();
    let b = fleet.worker("b").await;
    let held = || (a.holds(), b.holds());
    fleet.until("s is shared or b's", LEASE_TIME_MS, || held().1 > 0).await;
    assert_eq!(a.coordinator.remove_stream(&STREAM.into(), 5_000).await, []);
    fleet.until("s is b's", LEASE_TIME_MS / 2, || held() == (2, 2)).await;
    // The state in which a had requested the lease before, and b had begun to pass it.
    let (row, taker) = (fleet.rows().remove(0), a.coordinator.worker());
    let name = LeaseChange::RequestHandOver { taker: taker.clone(), term: row.term };
    let name = Write::lease(&row.key, name, Nonce(1));
    let pass = row.token().unwrap().hand_over(&taker, Nonce(2));
    for write in [name, pass] {
        assert!(fleet.store.write(&write).await.unwrap().is_done());
    }
    assert_eq!(fleet.rows()[0].owner, Some(taker));
    let owner = Some(b.coordinator.worker());
    let is_b = || fleet.rows().iter().all(|row| row.owner == owner);
    fleet.until("b has it again", 3 * LEASE_TIME_MS, || is_b() && held() == (2, 2)).await;
    // In the end it is not read any more, and the other stream is read on.
    fleet.pass(3 * LEASE_TIME_MS).await;
    assert!(is_b() && held() == (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_take_that_is_answered_after_its_stream_was_removed_is_given_back_unread() {
    let fleet = LeaseFleet::native(2);
    let store = FaultyStore::new(fleet.store.clone());
    let a = fleet.worker_on(store.clone(), LeaseFleet::settings("a")).await.unwrap();
    // Writes are applied at once, and their replies arrive two seconds later.
    store.set(LinkFaults::RepliesSlow);
    let owned = || fleet.rows().iter().filter(|row| row.owner.is_some()).count();
    fleet.until("the takes have arrived", 2_000, || owned() == 2).await;
    assert_eq!(a.holds(), 0, "no answer has come");
    assert_eq!(a.coordinator.remove_stream(&STREAM.into(), 5_000).await, []);
    store.set(LinkFaults::Good);
    fleet.until("they are given back", 3 * LEASE_TIME_MS, || owned() + a.holds() == 0).await;
    fleet.pass(LEASE_TIME_MS).await;
    assert_eq!((owned(), a.holds()), (0, 0));
    let delivered = [0, 1].map(|shard| fleet.watch.last(&id(shard)));
    assert_eq!(delivered, [None, None], "nothing was delivered");
    assert_eq!(fleet.watch.begun(), [""; 0], "nobody was given a lease that goes back");
}

#[tokio::test(start_paused = true)]
async fn heavy_and_light_leases_are_exchanged_where_weights_count() {
    let by_weight = Balance::Weight { hysteresis_percent: 20 };
    for (balance, heavy_of_a) in [(by_weight, 1), (Balance::Count, 2)] {
        let fleet = LeaseFleet::native(4);
        let settings = |name| {
            let mut settings = LeaseFleet::settings(name);
            settings.plan.balance = balance;
            settings
        };
        let a = fleet.try_worker(settings("a")).await.unwrap();
        let b = fleet.try_worker(settings("b")).await.unwrap();
        fleet.until("2 each", LEASE_TIME_MS, || (a.holds(), b.holds()) == (2, 2)).await;
        let heavy = a.coordinator.leases();
        for row in fleet.rows() {
            let rate = if heavy.contains(&row.key) { 1 << 20 } else { 1 << 10 };
            let (hold, at) = (row.token().unwrap(), row.checkpoint);
            let write = hold.checkpoint_at_rate(at.clone(), at, None, Some(rate), Nonce(1));
            assert!(fleet.store.write(&write).await.unwrap().is_done());
        }
        // No version changes with a checkpoint: the rates are seen with the next full list.
        fleet.pass(120_000).await;
        let leases = a.coordinator.leases();
        let left = leases.iter().filter(|lease| heavy.contains(lease)).count();
        assert_eq!((leases.len(), b.holds(), left), (2, 2, heavy_of_a), "{balance:?}");
    }
}
