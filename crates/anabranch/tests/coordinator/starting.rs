//! Preconditions for a worker to take leases.

use crate::fleet::{LeaseFleet, STREAM};
use crate::troubled::{FaultyStore, LinkFaults};
use anabranch::event::LeaseEvent;
use anabranch::lease::{
    CoordinatorSettings, CoordinatorStartError, MemoryStore, StopResult, StreamSettings,
};
use anabranch_local::{Engine, EngineOptions};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::kcl_probe::{Kcl3Leader, LEADER_LOCK_MS};
use anabranch_model::lease::{Layout, LeaseChange, Write};
use anabranch_model::position::StartPosition;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

fn synced(fleet: &LeaseFleet) -> bool {
    fleet.table().application().streams.values().all(|facts| facts.first_sync_done)
}

#[tokio::test(start_paused = true)]
async fn a_first_sync_that_was_broken_off_is_repeated_and_nobody_takes_before_it_is_done() {
    let fleet = LeaseFleet::native(8);
    let store = FaultyStore::new(fleet.store.clone());
    let made = AtomicUsize::new(0);
    store.fail_if(move |write| {
        let creates = matches!(write, Write::Lease { change: LeaseChange::Create(_), .. });
        creates && made.fetch_add(1, Ordering::Relaxed) >= 3
    });
    let died = fleet.worker_on(store, LeaseFleet::settings("a")).await;
    assert!(matches!(died, Err(CoordinatorStartError::Store(_))));
    assert_eq!(fleet.rows().len(), 3);
    assert!(!synced(&fleet), "no mark before the last row");
    // The next one fails after the rows, before the stream is marked as synced.
    let store = FaultyStore::new(fleet.store.clone());
    store.fail_if(|write| matches!(write, Write::Stream { .. }));
    assert!(fleet.worker_on(store, LeaseFleet::settings("b")).await.is_err());
    assert_eq!(fleet.rows().len(), 8);
    assert!(fleet.rows().iter().all(|row| row.owner.is_none()), "nobody takes before the mark");
    let c = fleet.worker("c").await;
    assert!(synced(&fleet));
    fleet.until("c holds all", 2_000, || c.holds() == 8).await;
}

#[tokio::test(start_paused = true)]
async fn workers_that_start_at_once_share_the_making_of_the_first_rows() {
    const ROWS: usize = 400;
    let fleet = LeaseFleet::native(400);
    let sent = Arc::new(AtomicUsize::new(0));
    let store = || {
        let (store, sent) = (FaultyStore::new(fleet.store.clone()), sent.clone());
        store.fail_if(move |write| {
            if matches!(write, Write::Lease { change: LeaseChange::Create(_), .. }) {
                sent.fetch_add(1, Ordering::Relaxed);
            }
            false
        });
        store
    };
    let start = |name| fleet.worker_on(store(), LeaseFleet::settings(name));
    let workers = tokio::join!(start("a"), start("bb"), start("ccc"), start("dddd"), start("e5"));
    assert!(workers.0.is_ok() && workers.4.is_ok());
    assert_eq!(fleet.rows().len(), ROWS);
    let sent = sent.load(Ordering::Relaxed);
    println!("5 workers sent {sent} writes for {ROWS} rows");
    assert!(sent < 2 * ROWS, "each makes a part of the rows, not all: {sent} writes");
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_looks_as_often_as_the_store_suggests_or_as_it_was_told() {
    let check = async |suggested, told, expected: std::ops::Range<u64>| {
        let fleet = LeaseFleet::native(1);
        let store = FaultyStore::new(fleet.store.clone()).with_look_ms(suggested);
        let settings = CoordinatorSettings { poll_interval: told, ..LeaseFleet::settings("a") };
        let _worker = fleet.worker_on(store.clone(), settings).await.unwrap();
        fleet.pass(10_000).await;
        let before = store.looks();
        fleet.pass(60_000).await;
        let looks = store.looks() - before;
        assert!(expected.contains(&looks), "{suggested}, {told:?}: {looks} looks in a minute");
    };
    // The audit polls now and then too.
    check(500, None, 100..126).await;
    check(2_000, None, 26..36).await;
    check(2_000, Some(500), 100..126).await;
}

#[tokio::test(start_paused = true)]
async fn a_start_waits_for_a_store_that_does_not_answer() {
    for line in [LinkFaults::Throttled, LinkFaults::Dead, LinkFaults::RepliesLost] {
        let fleet = LeaseFleet::native(2);
        let store = FaultyStore::new(fleet.store.clone());
        store.set(line);
        let (worker, ()) =
            tokio::join!(fleet.worker_on(store.clone(), LeaseFleet::settings("a")), async {
                fleet.pass(60_000).await;
                store.set(LinkFaults::Good);
            });
        let a = worker.unwrap();
        fleet.until("a holds all", 20_000, || a.holds() == 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_stream_and_a_re_created_one_are_refused_by_name() {
    let fleet = LeaseFleet::native(1);
    let settings = LeaseFleet::settings("a").with_stream("other", StartPosition::TrimHorizon);
    let error = fleet.try_worker(settings).await.err().unwrap();
    assert!(error.to_string().contains("stream other does not exist"), "{error}");
    drop(fleet.worker("a").await);
    fleet.delete();
    fleet.engine.clock().advance(60_000);
    fleet.create(1);
    let error = fleet.try_worker(LeaseFleet::settings("b")).await.err().unwrap();
    assert!(error.to_string().contains("stream s was recreated at"), "{error}");
}

/// Creates a fleet whose streams are CREATING and UPDATING until the clock is advanced.
fn slow(layout: Layout) -> LeaseFleet {
    let mut fleet = LeaseFleet::new(layout, 1);
    let slow = EngineOptions {
        create_delay_ms: 60_000,
        update_delay_ms: 60_000,
        ..EngineOptions::instant()
    };
    let clock = anabranch_local::Clock::manual(1_700_000_000_000);
    fleet.engine = Arc::new(Engine::new(slow, clock));
    fleet.create(2);
    fleet
}

#[tokio::test(start_paused = true)]
async fn a_start_waits_for_a_stream_that_is_made_or_changed_before_anybody_has_read_it() {
    let check = async |fleet: &LeaseFleet, name: &str, holds| {
        let clock = fleet.engine.clock();
        let started = AtomicBool::new(false);
        let start = async {
            let worker = fleet.worker(name).await;
            started.store(true, Ordering::Relaxed);
            worker
        };
        let (worker, ()) = tokio::join!(start, async {
            for _ in 0..59 {
                fleet.pass(1_000).await;
                clock.advance(1_000);
            }
            assert!(!started.load(Ordering::Relaxed), "{name}: the stream can't be used yet");
            assert!(fleet.rows().is_empty(), "{name} makes no rows");
            clock.advance(1_000);
        });
        let awaited = |event: &LeaseEvent| match event {
            LeaseEvent::StreamNotActive { status, .. } => status.to_string() == name,
            _ => false,
        };
        assert_eq!(fleet.count(awaited), 1, "it says once that it waits: {name}");
        fleet.until("it holds all", 20_000, || worker.holds() >= holds).await;
        let _: StopResult = worker.stop(1_000).await;
    };
    for layout in [Layout::Native, Layout::Kcl] {
        let mut fleet = slow(layout);
        check(&fleet, "CREATING", 2).await;
        fleet.store = MemoryStore::with_layout(layout);
        fleet.split(0, 1 << 100);
        check(&fleet, "UPDATING", 3).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_has_rows_starts_while_the_stream_is_being_changed() {
    for layout in [Layout::Native, Layout::Kcl] {
        let fleet = slow(layout);
        fleet.engine.clock().advance(60_000);
        let a = fleet.worker("a").await;
        fleet.until("a holds all", 20_000, || a.holds() == 2).await;
        let _: StopResult = a.stop(1_000).await;
        fleet.split(0, 1 << 100);
        // The clock does not advance, so the change does not complete.
        let start = tokio::time::timeout(Duration::from_mins(10), fleet.worker("b"));
        let b = start.await.expect("it does not wait for that end");
        fleet.until("b holds the children too", 20_000, || b.holds() >= 3).await;
        let awaited = |event: &LeaseEvent| matches!(event, LeaseEvent::StreamNotActive { .. });
        assert_eq!(fleet.count(awaited), 0, "{layout:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn latest_means_the_first_start_for_every_worker_and_for_ever() {
    let fleet = LeaseFleet::native(2);
    let latest = |name| {
        let mut settings = LeaseFleet::settings(name);
        settings.streams[0].start = StartPosition::Latest;
        settings
    };
    let t0 = fleet.engine.clock().now_ms();
    drop(fleet.try_worker(latest("a")).await.unwrap());
    fleet.engine.clock().advance(3_600_000);
    drop(fleet.try_worker(latest("b")).await.unwrap());
    for row in fleet.rows() {
        assert_eq!(row.checkpoint, anabranch_model::position::Position::AtTimestamp(t0));
    }
}

#[tokio::test(start_paused = true)]
async fn streams_come_and_go_while_a_worker_runs() {
    let fleet = LeaseFleet::native(2);
    let a = fleet.worker("a").await;
    fleet.until("a holds all", 2_000, || a.holds() == 2).await;
    let again = StreamSettings { name: STREAM.into(), start: StartPosition::TrimHorizon };
    let twice = a.coordinator.add_stream(again.clone()).await;
    assert!(matches!(twice, Err(CoordinatorStartError::DuplicateStream { .. })));
    fleet.create_as("t", 3);
    let more = StreamSettings { name: "t".into(), start: StartPosition::TrimHorizon };
    a.coordinator.add_stream(more).await.unwrap();
    fleet.until("a holds both", 2_000, || a.holds() == 5).await;
    let left = a.coordinator.remove_stream(&StreamName::from(STREAM), 5_000).await;
    assert_eq!(left, []);
    assert_eq!(a.holds(), 3);
    assert!(fleet.rows().iter().all(|row| row.owner.is_none()));
    fleet.pass(5_000).await;
    assert_eq!(a.holds(), 3);
    a.coordinator.add_stream(again).await.unwrap();
    fleet.until("a holds both again", 2_000, || a.holds() == 5).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_tells_the_store_where_it_starts() {
    let fleet = LeaseFleet::new(Layout::Kcl, 2);
    let store = FaultyStore::new(fleet.store.clone());
    let mut settings = LeaseFleet::settings("a");
    settings.streams[0].start = StartPosition::AtTimestamp(1_700_000_000_000);
    let a = fleet.worker_on(store.clone(), settings).await.unwrap();
    fleet.until("a holds all", 5_000, || a.holds() == 2).await;
    let told = store.starts.lock().unwrap().clone();
    assert_eq!(told, [(STREAM.into(), StartPosition::AtTimestamp(1_700_000_000_000))]);
}

#[tokio::test(start_paused = true)]
async fn a_table_of_kcl_3_is_left_alone_until_nothing_on_it_moves() {
    let leader = |version: u32| Kcl3Leader {
        owner: "java".into(),
        version: version.to_string(),
        lock_ms: LEADER_LOCK_MS,
    };
    let fleet = LeaseFleet::new(Layout::Kcl, 2);
    let store = FaultyStore::new(fleet.store.clone());
    store.survey.lock().unwrap().leader = Some(leader(0));
    let (refused, ()) =
        tokio::join!(fleet.worker_on(store.clone(), LeaseFleet::settings("a")), async {
            fleet.pass(30_000).await;
            store.survey.lock().unwrap().leader = Some(leader(1));
        });
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("worker java holds the leader lock"), "{error}");
    assert!(fleet.rows().is_empty(), "nothing was touched");
    let start = fleet.clock.now_ms();
    let a = fleet.worker_on(store, LeaseFleet::settings("a")).await.unwrap();
    assert!(fleet.clock.now_ms() - start >= LEADER_LOCK_MS);
    let told = |event: &LeaseEvent| match event {
        LeaseEvent::WaitingForKcl3 { wait, leader } => {
            (*wait, leader.as_deref()) == (Duration::from_millis(LEADER_LOCK_MS), Some("java"))
        }
        _ => false,
    };
    assert_eq!(fleet.count(told), 2, "each start says once for how long it waits");
    fleet.until("a holds all", 5_000, || a.holds() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_come_up_is_told_of() {
    let fleet = LeaseFleet::native(1);
    let store = FaultyStore::new(fleet.store.clone());
    store.set(LinkFaults::Dead);
    let told = |event: &LeaseEvent| matches!(event, LeaseEvent::StoreCallFailed { .. });
    {
        let start = fleet.worker_on(store.clone(), LeaseFleet::settings("a"));
        assert!(tokio::time::timeout(Duration::from_mins(5), start).await.is_err());
    }
    assert_eq!(fleet.count(told), 2, "one each two minutes");
    store.set(LinkFaults::Good);
    let a = fleet.worker_on(store, LeaseFleet::settings("a")).await.unwrap();
    fleet.until("it is read", 5_000, || a.holds() == 1).await;
}
