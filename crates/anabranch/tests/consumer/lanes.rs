//! Lanes: keys of one shard that are handled concurrently.

use crate::gate::HandlerGate;
use crate::world::{ConsumerFixture, RunningWorker, pause};
use anabranch::consumer::{Batch, Delivery, HandlerError};
use anabranch_model::hash::HashKey;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Returns those of ten keys that share a lane of eight with `key-0`.
pub(crate) fn beside_key_0() -> Vec<String> {
    let lane = |key: &str| HashKey::of_partition_key(key).0 % 8;
    let keys = (0..10).map(|key| format!("key-{key}"));
    keys.filter(|key| lane(key) == lane("key-0")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_stuck_key_holds_back_its_own_lane_only_and_the_others_come_not_again() {
    let world = ConsumerFixture::new(1);
    (0..20).for_each(|_| world.put_round(10));
    let held = beside_key_0();
    assert!(held.len() < 5, "the test has other lanes to look at: {held:?}");
    let note = Arc::new(world.note("first"));
    let consumer = world.consumer(1).with_concurrency(8).each(move |record: Delivery| {
        let note = Arc::clone(&note);
        async move {
            if record.partition_key.as_str() == "key-0" {
                std::future::pending::<()>().await;
            }
            note(record).await
        }
    });
    let worker = RunningWorker::start(
        consumer.with_settings(|settings| settings.grace_period = Duration::from_secs(2)),
    );
    let free = (10 - held.len()) * 20;
    world
        .until("the other lanes are done", || {
            let deliveries = world.oracle.deliveries();
            deliveries.iter().filter(|(key, _)| !held.contains(key)).count() == free
        })
        .await;
    // The stuck handler's future is dropped at the end of the grace period, and that is reported.
    let broken_off = worker.stop_short().await;
    let keys: Vec<_> = broken_off.iter().map(|call| call.key.as_str()).collect();
    assert_eq!(keys, ["key-0"]);
    let before = world.oracle.deliveries();
    let worker =
        RunningWorker::start(world.consumer(2).with_concurrency(8).each(world.note("second")));
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0, "before: {before:?}");
}

#[tokio::test(start_paused = true)]
async fn keys_run_side_by_side_and_each_in_order() {
    let world = ConsumerFixture::new(1);
    (0..10).for_each(|_| world.put_round(40));
    let running: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let most = Arc::new(Mutex::new(0));
    let (note, side, top) = (Arc::new(world.note("one")), running.clone(), most.clone());
    let consumer = world.consumer(1).with_concurrency(16).each(move |record: Delivery| {
        let (note, side, top) = (Arc::clone(&note), side.clone(), top.clone());
        async move {
            let key = record.partition_key.as_str().to_owned();
            {
                let mut side = side.lock().unwrap();
                assert_eq!(side.insert(key.clone(), 1), None, "{key} runs twice at once");
                let mut top = top.lock().unwrap();
                *top = side.len().max(*top);
            }
            pause(10).await;
            side.lock().unwrap().remove(&key);
            note(record).await
        }
    });
    let worker = RunningWorker::start(consumer);
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
    assert!(*most.lock().unwrap() > 8, "{} ran side by side", most.lock().unwrap());
}

#[tokio::test(start_paused = true)]
async fn batches_come_whole_again_after_an_error() {
    let world = ConsumerFixture::new(1);
    (0..30).for_each(|_| world.put_round(10));
    let (oracle, calls) = (world.oracle.clone(), Arc::new(Mutex::new(Vec::new())));
    let made = Arc::clone(&calls);
    let consumer = world.consumer(1).batches(50, move |batch: Batch| {
        let first = batch.records[0].position();
        let again = {
            let mut made = made.lock().unwrap();
            made.push((first, batch.records.len()));
            made.iter().filter(|(at, _)| *at == first).count()
        };
        if again == 1 {
            return std::future::ready(Err::<(), HandlerError>("on purpose".into()));
        }
        for record in &batch.records {
            oracle.delivered(record.partition_key.as_str(), &record.data, "one");
        }
        std::future::ready(Ok(()))
    });
    let worker = RunningWorker::start(consumer);
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
    let calls = calls.lock().unwrap();
    assert!(calls.iter().all(|(_, records)| *records <= 50));
    assert!(calls.iter().any(|(_, records)| *records == 50), "{calls:?}");
    assert!(calls.chunks(2).all(|two| two[0] == two[1]), "{calls:?}");
}

/// Decision 10: a slow key does not delay another lane, even if each read returns few records.
#[tokio::test(start_paused = true)]
async fn a_stuck_key_that_gets_a_record_now_and_then_holds_back_no_other_lane() {
    let (world, gate) = (ConsumerFixture::ticking(1), HandlerGate::shut());
    let handler = gate.sleeper(&world, "key-0", "one");
    let worker = RunningWorker::start(world.consumer(1).with_concurrency(8).each(handler));
    let others = (1..10).map(|key| format!("key-{key}"));
    let others: Vec<_> = others.filter(|key| !beside_key_0().contains(key)).collect();
    for _ in 0..100 {
        world.put("key-0");
        for key in &others {
            world.put(key);
        }
        pause(1_000).await;
    }
    let come = 100 * others.len();
    world.until("all others come", || world.oracle.seen() == come).await;
    gate.open();
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

/// Decision 10: the gap above the lowest lane has a named bound, `lane_records`.
#[tokio::test(start_paused = true)]
async fn no_lane_gets_further_ahead_than_the_bound_allows() {
    for (lane_records, most) in [(64, 64 * 4), (512, 512 + 64 * 3)] {
        let (world, gate) = (ConsumerFixture::new(1), HandlerGate::shut());
        let handler = gate.sleeper(&world, "stuck", "one");
        let consumer = world.consumer(1).with_concurrency(2).each(handler);
        let worker = RunningWorker::start(consumer.with_settings(|settings| {
            settings.lane_records = lane_records;
        }));
        let lane = |key: &str| HashKey::of_partition_key(key).0 % 2;
        let mut others = (0..100).map(|key| format!("key-{key}"));
        let other = others.find(|key| lane(key) != lane("stuck")).unwrap();
        // Equal numbers of both keys, so that the records left of one show how many of both
        // arrived.
        for _ in 0..2_000 {
            world.put("stuck");
            world.put(&other);
        }
        pause(60_000).await;
        let ahead = world.oracle.seen();
        assert!((lane_records..=most).contains(&ahead), "{ahead} of {lane_records}");
        gate.open();
        world.until_all_seen().await;
        worker.stop().await;
        world.oracle.check();
    }
}
