//! Stops: graceful, and with handlers that are busy, stuck, or cannot be stopped.

use crate::gate::{HandlerGate, threads};
use crate::world::{ConsumerFixture, RunningWorker, STREAM, pause};
use anabranch::consumer::{Consumer, Delivery, HandlerError, ProcessingMode, RunError};
use anabranch::event::{Event, LeaseEvent};
use anabranch::lease::MemoryStore;
use anabranch::stream::LocalKinesis;
use anabranch_model::lease::{HandOver, Lease};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn a_stop_lets_the_handler_end_its_call_and_repeats_nothing() {
    let world = ConsumerFixture::new(2);
    (0..20).for_each(|_| world.put_round(10));
    let note = Arc::new(world.note("first"));
    let slow = RunningWorker::start(world.consumer(1).each(move |record: Delivery| {
        let note = Arc::clone(&note);
        async move {
            pause(300).await;
            note(record).await
        }
    }));
    world.until("some are delivered", || world.oracle.seen() >= 7).await;
    slow.stop().await;
    assert!(world.oracle.seen() < 200, "it was stopped in the middle");
    let worker = world.worker("second", 2);
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_shards_of_a_worker_that_stops_go_on_elsewhere_at_once() {
    let world = ConsumerFixture::new(4);
    world.put_round(20);
    let first = world.worker("first", 1);
    world.until_all_seen().await;
    let second = world.worker("second", 2);
    pause(30_000).await;
    first.stop().await;
    world.put_round(20);
    let begun = tokio::time::Instant::now();
    world.until_all_seen().await;
    // Far below the lease time of ten seconds: the leases were released.
    assert!(begun.elapsed().as_millis() < 2_500, "{:?}", begun.elapsed());
    second.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

/// A rolling deploy changes the lease time from 60 s to 10 s and back, while records arrive.
#[tokio::test(start_paused = true)]
async fn a_rolling_change_of_the_lease_time_under_load_repeats_nothing() {
    let world = ConsumerFixture::new(6);
    let start = |lease_time_ms: u64, seed: u64| {
        let note = Arc::new(world.note("any"));
        let slow = world.consumer(seed).each(move |record: Delivery| {
            let note = Arc::clone(&note);
            async move {
                pause(40).await;
                note(record).await
            }
        });
        RunningWorker::start(slow.with_settings(|settings| {
            settings.lease_time = Duration::from_millis(lease_time_ms);
        }))
    };
    let mut workers: Vec<RunningWorker> = (0..3).map(|seed| start(60_000, seed)).collect();
    for (seed, lease_time_ms) in [10_000; 3].into_iter().chain([60_000; 3]).enumerate() {
        for _ in 0..70 {
            world.put_round(30);
            pause(1_000).await;
        }
        let old = workers.remove(0);
        let (new, ()) = tokio::join!(async { start(lease_time_ms, 10 + seed as u64) }, old.stop());
        workers.push(new);
    }
    world.until_all_seen().await;
    let told = world.events.lock().unwrap().clone();
    let lost = told.iter().filter(|event| {
        use LeaseEvent::{Evicted, LeaseLost, WorkerFenced};
        matches!(event, Event::Lease(WorkerFenced { .. } | Evicted { .. } | LeaseLost { .. }))
    });
    assert_eq!(lost.count(), 0);
    for worker in workers {
        worker.stop().await;
    }
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[test]
fn a_handler_that_blocks_its_thread_keeps_the_lease_and_fails_the_stop() {
    threads(3).block_on(async {
        let (world, gate) = (ConsumerFixture::new(1), HandlerGate::shut());
        world.put_round(1);
        let consumer = world.consumer(1).each(gate.blocker(&world, "key-0", "first"));
        let worker = RunningWorker::start(
            consumer.with_settings(|settings| settings.grace_period = Duration::from_millis(200)),
        );
        world.until("the handler runs", || gate.came() == 1).await;
        worker.ask_to_stop();
        let stopped = worker.stopped().await;
        gate.open();
        assert!(matches!(stopped, Err(RunError::Unreleased { .. })), "{stopped:?}");
        let table = world.leases.snapshot();
        let owners: Vec<_> =
            table.leases(&STREAM.into()).map(|lease| lease.owner.clone()).collect();
        assert!(owners.iter().all(Option::is_some), "the lease is kept: {owners:?}");
    });
}

#[test]
fn a_stream_removed_under_a_handler_that_blocks_its_thread_is_given_back_when_it_returns() {
    threads(3).block_on(async {
        let (world, gate) = (ConsumerFixture::new(1), HandlerGate::shut());
        world.put_round(1);
        let consumer = world.consumer(1).each(gate.blocker(&world, "key-0", "first"));
        let mut consumer =
            consumer.with_settings(|settings| settings.grace_period = Duration::from_millis(200));
        let (health, control) = (consumer.health(), consumer.control());
        let worker = RunningWorker::start(consumer);
        world.until("the handler runs", || gate.came() == 1).await;
        tokio::select! {
            biased;
            left = control.remove(STREAM) => assert_eq!(left.unwrap().len(), 1),
            () = world.until("it can't be stopped", || !health.is_live()) => {}
        }
        world.put_round(5);
        gate.open();
        let kept = || {
            let table = world.leases.snapshot();
            table.leases(&STREAM.into()).any(|lease| lease.owner.is_some())
        };
        let handled = || world.oracle.given_to("first");
        world.until("it is given back or read", || !kept() || handled() > 1).await;
        assert_eq!(handled(), 1, "a stream that was removed is read no more");
        worker.stop().await;
    });
}

/// A consumer of eight lanes whose handler blocks its thread at the first record of each shard
/// until it is released. The handler reports all records to the oracle.
struct BlockingConsumer {
    /// Keys whose handlers block, by shard.
    blocked: Arc<Mutex<BTreeMap<String, String>>>,
    free: Arc<AtomicBool>,
}

impl BlockingConsumer {
    fn new() -> Self {
        Self { blocked: Arc::default(), free: Arc::default() }
    }

    fn consumer(
        &self,
        world: &ConsumerFixture,
    ) -> Consumer<LocalKinesis, MemoryStore, impl ProcessingMode<MemoryStore> + use<>> {
        let (blocked, free) = (Arc::clone(&self.blocked), Arc::clone(&self.free));
        let oracle = world.oracle.clone();
        world.consumer(1).with_concurrency(8).each(move |record: Delivery| {
            let key = record.partition_key.as_str();
            let first = {
                let mut blocked = blocked.lock().unwrap();
                let first = blocked.entry(record.shard.shard.to_string());
                let first = first.or_insert_with(|| key.to_owned());
                *first == key
            };
            while first && !free.load(Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            oracle.delivered(key, &record.data, "first");
            std::future::ready(Ok::<(), HandlerError>(()))
        })
    }

    fn set_free(&self) {
        self.free.store(true, Ordering::SeqCst);
    }

    /// Returns those of the first `of` keys that share no lane of eight with a key whose handler
    /// blocks.
    fn free_keys(&self, of: usize) -> Vec<String> {
        use anabranch_model::hash::HashKey;
        let lane = |key: &str| HashKey::of_partition_key(key).0 % 8;
        let held: Vec<_> = self.blocked.lock().unwrap().values().map(|key| lane(key)).collect();
        let keys = (0..of).map(|key| format!("key-{key}"));
        keys.filter(|key| !held.contains(&lane(key))).collect()
    }
}

/// A failing test must not wait for the handlers that it blocks.
impl Drop for BlockingConsumer {
    fn drop(&mut self) {
        self.set_free();
    }
}

/// Decision 7: a handler that cannot be stopped keeps the lease, and the other lanes keep
/// delivering.
#[test]
fn other_lanes_deliver_on_while_a_handler_that_cant_be_stopped_keeps_the_lease() {
    threads(6).block_on(async {
        let blocking = BlockingConsumer::new();
        let world = ConsumerFixture::new(2);
        world.put_round(40);
        let consumer = blocking
            .consumer(&world)
            .with_settings(|settings| settings.grace_period = Duration::from_millis(300));
        let health = consumer.health();
        let first = RunningWorker::start(consumer);
        let both = || blocking.blocked.lock().unwrap().len() == 2;
        world.until("both shards have a handler that blocks", both).await;
        // Another worker requests one of the two.
        let second = world.worker("second", 2);
        world.until("a handler can't be stopped", || !health.is_live()).await;
        let refused = |row: &Lease| row.hand_over == HandOver::Refused;
        world.until("the row says so", || world.rows().iter().any(refused)).await;
        let kept = world.rows().iter().filter(|row| row.owner.is_some()).count();
        assert_eq!(kept, 2, "nobody has let go");
        let free = blocking.free_keys(40);
        assert!(free.len() > 5, "the test has other lanes to look at: {free:?}");
        let seen = || {
            let seen = world.oracle.deliveries();
            free.iter().all(|key| seen.contains(&(key.clone(), 1)))
        };
        world.put_round(40);
        world.until("the other lanes deliver on", seen).await;
        assert_eq!(world.oracle.given_to("second"), 0, "the lease was refused");
        blocking.set_free();
        world.until_all_seen().await;
        // The call that kept the lease has returned, so the lease can be handed over.
        let handed =
            |event: &Event| matches!(event, Event::Lease(LeaseEvent::LeaseHandedOver { .. }));
        world.until("the lease is handed over", || world.told(handed)).await;
        assert!(health.is_live());
        world.put_round(40);
        world.until_all_seen().await;
        first.stop().await;
        second.stop().await;
        world.oracle.check();
        assert_eq!(world.oracle.duplicates(), 0);
    });
}

#[test]
fn a_stream_removed_while_a_shard_of_it_is_drained_for_another_worker_is_read_no_more() {
    threads(6).block_on(async {
        let blocking = BlockingConsumer::new();
        let world = ConsumerFixture::new(2);
        world.put_round(40);
        let mut consumer = blocking
            .consumer(&world)
            .with_settings(|settings| settings.grace_period = Duration::from_secs(2));
        let (health, control) = (consumer.health(), consumer.control());
        let first = RunningWorker::start(consumer);
        let both = || blocking.blocked.lock().unwrap().len() == 2;
        world.until("both shards have a handler that blocks", both).await;
        let second = world.worker("second", 2);
        let drains = |event: &Event| matches!(event, Event::Lease(LeaseEvent::Draining { .. }));
        world.until("a shard is drained", || world.told(drains)).await;
        // The removal has a later deadline than the hand-over.
        let (left, ()) = tokio::join!(control.remove(STREAM), async {
            world.until("a handler can't be stopped", || !health.is_live()).await;
        });
        assert_eq!(left.unwrap().len(), 2, "both are kept");
        let before = world.oracle.given_to("first");
        world.put_round(40);
        pause(2_000).await;
        assert_eq!(world.oracle.given_to("first"), before, "no lane of either goes on");
        blocking.set_free();
        let name = |row: &Lease| row.owner.as_ref().map(ToString::to_string).unwrap_or_default();
        let apart = || world.rows().iter().map(name).collect::<std::collections::BTreeSet<_>>();
        world.until_all_seen().await;
        world.until("the second has both", || apart().len() == 1).await;
        let by_first = world.oracle.given_to("first");
        assert!(by_first <= before + 2, "the two calls that were made: {before}, {by_first}");
        first.stop().await;
        second.stop().await;
        world.oracle.check();
    });
}
