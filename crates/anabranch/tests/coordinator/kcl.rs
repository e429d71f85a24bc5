//! KCL's layout: leases are renewed one by one, and unowned ones are taken as Java does.

use crate::fleet::{LEASE_TIME_MS, LeaseFleet, STREAM, id};
use crate::troubled::{FaultyStore, LinkFaults};
use anabranch::event::LeaseEvent;
use anabranch::lease::LeaseStore;
use anabranch::lease::StopResult;
use anabranch_model::hash::HashRange;
use anabranch_model::lease::kcl_probe::Kcl3Leader;
use anabranch_model::lease::{
    HandOver, Layout, Lease, LeaseChange, NewLease, Nonce, WorkerId, Write,
};
use anabranch_model::position::Position;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;

#[tokio::test(start_paused = true)]
async fn leases_are_handed_over_until_the_fleet_is_level() {
    let fleet = LeaseFleet::new(Layout::Kcl, 4);
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
async fn our_own_workers_hand_over_a_backlog_and_steal_nothing() {
    for phase_ms in (0..4_000).step_by(730) {
        let fleet = LeaseFleet::new(Layout::Kcl, 8);
        let a = fleet.worker("a").await;
        fleet.until("a holds all", 5_000, || a.holds() == 8).await;
        fleet.pass(30_000 + phase_ms).await;
        // Draining the fetched records takes four seconds, longer than the time to the next
        // renewal.
        a.manners.drain_ms.store(4_000, Ordering::Relaxed);
        let b = fleet.worker("b").await;
        let took = fleet.until("4 each", 9_000, || (a.holds(), b.holds()) == (4, 4)).await;
        assert!(took >= 4_000, "the owner was still draining after {took} ms");
        let count = |of: fn(&LeaseEvent) -> bool| fleet.count(of);
        assert_eq!(count(|event| matches!(event, LeaseEvent::LeaseHandedOver { .. })), 4);
        assert_eq!(count(|event| matches!(event, LeaseEvent::LeaseLost { .. })), 0);
        assert_eq!(a.stop(10_000).await, StopResult::Left);
        fleet.until("b holds all", 3_000, || b.holds() == 8).await;
        assert_eq!(count(|event| matches!(event, LeaseEvent::LeaseLost { .. })), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stuck_handler_keeps_its_lease_from_our_own_workers() {
    let fleet = LeaseFleet::new(Layout::Kcl, 2);
    let a = fleet.worker("a").await;
    fleet.until("a holds all", 5_000, || a.holds() == 2).await;
    *a.manners.stuck.lock().unwrap() = Some("all".into());
    let b = fleet.worker("b").await;
    let refused = || fleet.rows().iter().filter(|row| row.hand_over == HandOver::Refused).count();
    fleet.until("a refuses", 5_000, || refused() > 0).await;
    fleet.pass(60_000).await;
    assert_eq!((a.holds(), b.holds()), (2, 0), "nobody takes from an owner that renews");
    *a.manners.stuck.lock().unwrap() = None;
    fleet.until("1 each", 30_000, || (a.holds(), b.holds()) == (1, 1)).await;
    assert_eq!(refused(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_stops_leaves_no_name_on_a_lease() {
    for phase_ms in (0..4_000).step_by(370) {
        let fleet = LeaseFleet::new(Layout::Kcl, 4);
        let a = fleet.worker("a").await;
        fleet.until("a holds all", 5_000, || a.holds() == 4).await;
        a.manners.drain_ms.store(1_500, Ordering::Relaxed);
        let b = fleet.worker("b").await;
        let asked = |event: &LeaseEvent| matches!(event, LeaseEvent::HandOverRequested { .. });
        fleet.until("b has asked", 5_000, || fleet.count(asked) == 2).await;
        fleet.pass(phase_ms).await;
        let id = b.coordinator.worker();
        assert_eq!(b.stop(5_000).await, StopResult::Left);
        let names_b = |row: &Lease| {
            row.owner.as_ref() == Some(&id)
                || row.hand_over == (HandOver::Requested { taker: id.clone() })
        };
        let named = fleet.rows().into_iter().filter(names_b).count();
        assert_eq!(named, 0, "{phase_ms} ms after it asked: {:#?}", fleet.rows());
        fleet.until("a holds all again", 5_000, || a.holds() == 4).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_passed_to_a_dead_worker_is_taken_after_the_lease_time() {
    let fleet = LeaseFleet::new(Layout::Kcl, 4);
    let a = fleet.worker("a").await;
    fleet.until("a holds all", 5_000, || a.holds() == 4).await;
    a.manners.drain_ms.store(1_500, Ordering::Relaxed);
    let b = fleet.worker("b").await;
    let asked = |event: &LeaseEvent| matches!(event, LeaseEvent::HandOverRequested { .. });
    fleet.until("b has asked", 5_000, || fleet.count(asked) == 2).await;
    drop(b);
    let passed = |event: &LeaseEvent| matches!(event, LeaseEvent::LeaseHandedOver { .. });
    fleet.until("a has passed both", 8_000, || fleet.count(passed) == 2).await;
    fleet.until("a holds all again", LEASE_TIME_MS + 3_000, || a.holds() == 4).await;
}

/// Starts a Java worker that renews its leases and takes no others.
async fn java(fleet: &LeaseFleet, leases: usize) -> JoinSet<()> {
    let java = WorkerId::from("ip-10-0-0-7:5b1a3c5e");
    for row in fleet.rows().into_iter().take(leases) {
        let take = LeaseChange::Take { taker: java.clone(), term: row.term };
        let take = Write::lease(&row.key, take, Nonce(1));
        assert!(fleet.store.write(&take).await.unwrap().is_done());
    }
    let (store, mut heart) = (fleet.store.clone(), JoinSet::new());
    heart.spawn(async move {
        loop {
            let rows = store.list(&STREAM.into()).await.unwrap().rows;
            for row in rows.iter().filter(|row| row.owner.as_ref() == Some(&java)) {
                let write = row.token().unwrap().renew(Nonce(1));
                assert!(store.write(&write).await.unwrap().is_done());
            }
            tokio::time::sleep(Duration::from_millis(3_300)).await;
        }
    });
    heart
}

#[tokio::test(start_paused = true)]
async fn from_a_worker_of_java_leases_are_stolen_until_both_have_half() {
    let fleet = LeaseFleet::new(Layout::Kcl, 8);
    let first = fleet.worker("first").await;
    fleet.until("the rows are made", 5_000, || first.holds() == 8).await;
    assert_eq!(first.stop(5_000).await, StopResult::Left);
    let _java = java(&fleet, 8).await;
    let a = fleet.worker("a").await;
    fleet.until("a has half", 5_000, || a.holds() == 4).await;
    fleet.pass(120_000).await;
    assert_eq!(a.holds(), 4);
    assert_eq!(fleet.count(|event| matches!(event, LeaseEvent::HandOverRequested { .. })), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stop_gives_leases_back_and_a_silent_worker_loses_them() {
    let fleet = LeaseFleet::new(Layout::Kcl, 4);
    let a = fleet.worker("a").await;
    fleet.until("a holds all", 5_000, || a.holds() == 4).await;
    let b = fleet.worker("b").await;
    fleet.until("2 each", 120_000, || (a.holds(), b.holds()) == (2, 2)).await;
    b.store.set(LinkFaults::Dead);
    fleet.until("b has lost its leases", 2 * LEASE_TIME_MS, || b.holds() == 0).await;
    fleet.until("a holds all again", 6 * LEASE_TIME_MS, || a.holds() == 4).await;
    assert_eq!(a.stop(5_000).await, StopResult::Left);
    assert!(fleet.rows().iter().all(|row| row.owner.is_none()), "{:?}", fleet.rows());
    assert!(fleet.count(|event| matches!(event, LeaseEvent::LeaseLost { .. })) >= 2);
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_within_two_seconds() {
    // The stop comes at any moment between two polls of the other worker.
    for phase_ms in (0..4_000).step_by(370) {
        let fleet = LeaseFleet::new(Layout::Kcl, 4);
        let a = fleet.worker("a").await;
        fleet.until("a holds all", 5_000, || a.holds() == 4).await;
        let b = fleet.worker("b").await;
        fleet.until("2 each", 120_000, || (a.holds(), b.holds()) == (2, 2)).await;
        fleet.pass(30_000 + phase_ms).await;
        assert_eq!(b.stop(5_000).await, StopResult::Left);
        fleet.until("a holds all again", 2_000, || a.holds() == 4).await;
        assert_eq!(a.stop(5_000).await, StopResult::Left);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_workers_leases_are_taken_within_the_lease_time_and_three_seconds() {
    for phase_ms in (0..4_000).step_by(370) {
        let fleet = LeaseFleet::new(Layout::Kcl, 6);
        let (a, b) = (fleet.worker("a").await, fleet.worker("b").await);
        let c = fleet.worker("c").await;
        let level = || (a.holds(), b.holds(), c.holds()) == (2, 2, 2);
        fleet.until("2 each", 120_000, level).await;
        fleet.pass(30_000 + phase_ms).await;
        drop(c);
        let within_ms = LEASE_TIME_MS + 3_000;
        fleet.until("3 each", within_ms, || (a.holds(), b.holds()) == (3, 3)).await;
        assert_eq!(a.stop(5_000).await, StopResult::Left);
        assert_eq!(b.stop(5_000).await, StopResult::Left);
    }
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_has_half_of_the_leases_within_five_seconds() {
    for phase_ms in (0..4_000).step_by(370) {
        let fleet = LeaseFleet::new(Layout::Kcl, 8);
        let a = fleet.worker("a").await;
        fleet.until("a holds all", 5_000, || a.holds() == 8).await;
        fleet.pass(30_000 + phase_ms).await;
        let b = fleet.worker("b").await;
        fleet.until("4 each", 5_000, || (a.holds(), b.holds()) == (4, 4)).await;
        assert_eq!(a.stop(5_000).await, StopResult::Left);
        assert_eq!(b.stop(5_000).await, StopResult::Left);
    }
}

#[tokio::test(start_paused = true)]
async fn a_table_is_read_as_often_as_its_store_suggests_whatever_waits() {
    let fleet = LeaseFleet::new(Layout::Kcl, 2);
    let store = FaultyStore::new(fleet.store.clone()).with_look_ms(4_000);
    let a = fleet.worker_on(store, LeaseFleet::settings("a")).await.unwrap();
    fleet.until("a holds all", 5_000, || a.holds() == 2).await;
    // A child whose parent is still being read.
    let child = NewLease {
        shard: id(2).as_str().into(),
        parents: vec![id(0).as_str().into()],
        range: HashRange::ALL,
        checkpoint: Position::TrimHorizon,
    };
    let create = child.create(&STREAM.into(), Nonce(1));
    assert!(fleet.store.write(&create).await.unwrap().is_done());
    fleet.until("a holds the child's lease", 60_000, || a.holds() == 3).await;
    fleet.pass(10_000).await;
    let before = a.store.looks();
    fleet.pass(120_000).await;
    let looks = a.store.looks() - before;
    assert!((25..=32).contains(&looks), "{looks} looks in 120 s, one each 4 s was suggested");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_throttles_is_asked_less_often() {
    let fleet = LeaseFleet::new(Layout::Kcl, 2);
    let a = fleet.worker("a").await;
    fleet.until("a holds all", 5_000, || a.holds() == 2).await;
    fleet.pass(10_000).await;
    a.store.throttle_lists(true);
    fleet.pass(40_000).await;
    let before = a.store.looks();
    fleet.pass(60_000).await;
    let looks = a.store.looks() - before;
    assert!(looks <= 5, "{looks} looks of a throttled table in 60 s");
    a.store.throttle_lists(false);
    fleet.pass(90_000).await;
    let before = a.store.looks();
    fleet.pass(20_000).await;
    let looks = a.store.looks() - before;
    assert!(looks >= 15, "{looks} looks in 20 s once the table has room again");
}

#[tokio::test(start_paused = true)]
async fn a_throttled_store_costs_nothing_within_the_lease_time() {
    let fleet = LeaseFleet::new(Layout::Kcl, 4);
    let a = fleet.worker("a").await;
    fleet.until("a holds all", 5_000, || a.holds() == 4).await;
    for _ in 0..3 {
        a.store.set(LinkFaults::Throttled);
        fleet.pass(LEASE_TIME_MS / 2).await;
        a.store.set(LinkFaults::Good);
        fleet.pass(LEASE_TIME_MS).await;
    }
    assert_eq!(a.holds(), 4);
    assert_eq!(fleet.count(|event| matches!(event, LeaseEvent::LeaseLost { .. })), 0);
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_moves_to_kcl_3_gets_the_table_for_itself() {
    let fleet = LeaseFleet::new(Layout::Kcl, 2);
    let a = fleet.worker("a").await;
    fleet.until("a holds all", 5_000, || a.holds() == 2).await;
    // About to migrate, it still takes leases as 2.x does.
    a.store.survey.lock().unwrap().client_version = Some("CLIENT_VERSION_UPGRADE_FROM_2X".into());
    fleet.pass(300_000).await;
    assert_eq!(a.holds(), 2);
    {
        let mut survey = a.store.survey.lock().unwrap();
        survey.client_version = Some("CLIENT_VERSION_3X_WITH_ROLLBACK".into());
        let (owner, version) = ("java".into(), "1".into());
        survey.leader = Some(Kcl3Leader { owner, version, lock_ms: 120_000 });
    }
    let refused = tokio::time::timeout(Duration::from_mins(3), a.coordinator.wait_refused()).await;
    let words = refused.expect("by the next audit").to_string();
    assert!(words.contains("KCL 3.x") && words.contains("java"), "{words}");
    fleet.until("a has given all back", 60_000, || a.holds() == 0).await;
    assert!(fleet.rows().iter().all(|row| row.owner.is_none()), "{:?}", fleet.rows());
    fleet.pass(300_000).await;
    assert_eq!(a.holds(), 0, "nothing is taken again");
    assert_eq!(fleet.count(|event| matches!(event, LeaseEvent::YieldedToKcl3 { .. })), 1);
    assert_eq!(fleet.count(|event| matches!(event, LeaseEvent::LeaseLost { .. })), 0);
}

#[tokio::test(start_paused = true)]
async fn the_leader_is_drawn_from_the_owners_of_all_streams_of_the_table() {
    let fleet = LeaseFleet::new(Layout::Kcl, 4);
    let (a, b) = (fleet.worker("a").await, fleet.worker("b").await);
    fleet.until("2 each", 120_000, || (a.holds(), b.holds()) == (2, 2)).await;
    // Of the owners a and b of one stream, Java would draw a. Of four it draws the last, and of
    // three too.
    let owners = |others: &[&str]| -> BTreeSet<String> {
        let ours = [a.coordinator.worker(), b.coordinator.worker()];
        ours.iter().map(WorkerId::as_str).chain(others.iter().copied()).map(str::to_owned).collect()
    };
    let tell = |owners: BTreeSet<String>, streams: &[&str]| {
        for worker in [&a, &b] {
            let mut survey = worker.store.survey.lock().unwrap();
            survey.owners = Some(owners.clone());
            survey.streams = streams.iter().map(|id| ((*id).to_owned(), 1)).collect();
        }
    };
    tell(owners(&["java-1", "java-2"]), &["1:s:5", "1:t:5"]);
    let first = fleet.rows()[0].key.clone();
    let delete = Write::lease(&first, LeaseChange::Delete { term: 0 }, Nonce(1));
    assert!(fleet.store.write(&delete).await.unwrap().is_done());
    let holes = || fleet.count(|event| matches!(event, LeaseEvent::HashRangeHole { .. }));
    fleet.pass(600_000).await;
    assert_eq!((fleet.rows().len(), holes()), (3, 0), "another stream's owner leads the table");
    tell(owners(&["!"]), &["1:s:5", "1:t:5"]);
    fleet.watch.forget(&first);
    fleet.until("b repairs the hole", 600_000, || fleet.rows().len() == 4).await;
    let unread = |event: &LeaseEvent| match event {
        LeaseEvent::LeadsUnreadStreams { streams } => streams == &["1:t:5"],
        _ => false,
    };
    fleet.pass(300_000).await;
    assert_eq!(
        fleet.count(unread),
        1,
        "b says once that it leads for a stream that it does not read"
    );
}
