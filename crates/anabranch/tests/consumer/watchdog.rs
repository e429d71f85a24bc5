//! Stuck shards: reported by name, restarted, and finally handed to others; and their effect on
//! health.

use crate::gate::{HandlerGate, threads};
use crate::lanes::beside_key_0;
use crate::outage::{CutOff, CutOffStore, consumer};
use crate::world::{ConsumerFixture, RunningWorker, pause};
use anabranch::consumer::{ConsumerSettings, Delivery, FetchMode, ReadPhase, WatchdogAction};
use anabranch::event::{Event, ShardEvent, ShardStopReason};
use anabranch::lease::MemoryStore;
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::Operation;
use anabranch_model::lease::Layout;
use anabranch_model::position::StartPosition;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const HOUR_MS: u64 = 3_600_000;

impl ConsumerFixture {
    /// Returns how often a shard was reported as stuck in this phase with this action.
    pub(crate) fn stuck(&self, phase: ReadPhase, remedy: WatchdogAction) -> usize {
        let like = |event: &&Event| {
            matches!(event, Event::Shard(ShardEvent::Stuck { phase: p, action: r, .. })
                if *p == phase && *r == remedy)
        };
        self.events.lock().unwrap().iter().filter(like).count()
    }

    pub(crate) fn released(&self) -> bool {
        self.told(|event| {
            matches!(event, Event::Shard(ShardEvent::Stopped { why: ShardStopReason::Stuck, .. }))
        })
    }
}

/// Sets limits that are below the calls' own timeouts.
pub(crate) fn short(settings: &mut ConsumerSettings) {
    settings.watchdog.iterator_ms = 5_000;
    settings.watchdog.fetch_ms = 5_000;
    settings.watchdog.handler_ms = 5_000;
    settings.watchdog.checkpoint_ms = 5_000;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_is_told_by_name_and_the_shard_is_read_on() {
    for (operation, phase) in [
        (Operation::GetRecords, ReadPhase::Fetch),
        (Operation::GetShardIterator, ReadPhase::Iterator),
    ] {
        let world = ConsumerFixture::ticking(2);
        world.put_round(20);
        world.strike(operation, FaultEffect::Delay { ms: HOUR_MS }, 0, 1);
        let consumer = world.consumer(1).with_settings(short);
        let worker = RunningWorker::start(consumer.each(world.note("one")));
        world.until_all_seen().await;
        world.until("the first is done", || world.stuck(phase, WatchdogAction::Restart) == 1).await;
        world.put_round(20);
        world.until_all_seen().await;
        worker.stop().await;
        world.oracle.check();
        assert_eq!(world.oracle.duplicates(), 0);
        assert!(!world.released(), "a restart has helped");
    }
}

#[tokio::test(start_paused = true)]
async fn fetching_is_restarted_while_handlers_run_and_the_lanes_deliver_on() {
    // A subscription lasts for five minutes, and the one after it hangs.
    for (operation, rounds) in [
        (Operation::GetRecords, 20),
        (Operation::GetShardIterator, 20),
        (Operation::SubscribeToShard, 330),
    ] {
        let (world, gate) = (ConsumerFixture::ticking(1), HandlerGate::shut());
        let consumer = world.consumer(1).with_concurrency(8).with_settings(|settings| {
            short(settings);
            settings.watchdog.handler_ms = HOUR_MS;
            if operation == Operation::SubscribeToShard {
                settings.fetch = FetchMode::FanOut;
            }
        });
        let worker = RunningWorker::start(consumer.each(gate.sleeper(&world, "key-0", "one")));
        world.put("key-0");
        world.until("the handler runs", || gate.came() == 1).await;
        world.strike(operation, FaultEffect::Delay { ms: HOUR_MS }, 0, 1);
        world.strike(Operation::GetRecords, FaultEffect::ExpireIterator, 0, 1);
        let held = beside_key_0();
        let others = (0..10).map(|key| format!("key-{key}"));
        let others: Vec<_> = others.filter(|key| !held.contains(key)).collect();
        for _ in 0..rounds {
            for key in &others {
                world.put(key);
            }
            pause(1_000).await;
        }
        let all_but_one = world.oracle.puts() - 1;
        world.until("the other lanes deliver on", || world.oracle.seen() == all_but_one).await;
        let restarts = [ReadPhase::Fetch, ReadPhase::Iterator]
            .map(|it| world.stuck(it, WatchdogAction::Restart));
        assert!(restarts.iter().sum::<usize>() >= 1, "{operation}: {restarts:?}");
        assert_eq!(gate.came(), 1, "{operation}: the call goes on");
        gate.open();
        world.until_all_seen().await;
        worker.stop().await;
        world.oracle.check();
        assert_eq!(world.oracle.duplicates(), 0, "{operation}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_a_shard_that_stands_at_latest_skips_nothing() {
    let mut world = ConsumerFixture::ticking(1);
    // The only layout whose rows keep LATEST.
    world.leases = MemoryStore::with_layout(Layout::Kcl);
    let consumer = world.consumer(1).starting_at(StartPosition::Latest).with_settings(short);
    let worker = RunningWorker::start(consumer.each(world.note("one")));
    pause(5_000).await;
    world.strike(Operation::GetRecords, FaultEffect::Delay { ms: HOUR_MS }, 0, 1);
    pause(2_000).await;
    world.put_round(20);
    world.until_all_seen().await;
    assert_eq!(world.stuck(ReadPhase::Fetch, WatchdogAction::Restart), 1);
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_no_restart_helps_is_given_back_and_goes_on_elsewhere() {
    let world = ConsumerFixture::ticking(1);
    world.put_round(10);
    let first =
        RunningWorker::start(world.consumer(1).with_settings(short).each(world.note("first")));
    world.until_all_seen().await;
    world.strike(Operation::GetRecords, FaultEffect::Delay { ms: HOUR_MS }, 0, u64::MAX);
    world.put_round(10);
    world.until("it is given back", || world.released()).await;
    assert_eq!(world.stuck(ReadPhase::Fetch, WatchdogAction::Restart), 2);
    world.engine.faults().clear();
    let second = world.worker("second", 2);
    world.until_all_seen().await;
    first.stop().await;
    second.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_is_only_told_and_shown_and_nothing_is_dropped() {
    let (world, gate) = (ConsumerFixture::ticking(2), HandlerGate::shut());
    let handler = gate.sleeper(&world, "key-0", "one");
    let consumer = world.consumer(1).with_settings(short).each(handler);
    let health = consumer.health();
    assert!(health.is_live() && !health.is_ready() && health.shards().is_empty());
    let worker = RunningWorker::start(consumer);
    world.put_round(20);
    world
        .until("it is told", || world.stuck(ReadPhase::Handler, WatchdogAction::Report) >= 2)
        .await;
    assert!(health.is_live() && health.is_ready());
    let shards = health.shards();
    assert_eq!(shards.len(), 2);
    let stuck: Vec<_> = shards.iter().filter_map(|shard| shard.stuck).collect();
    assert!(matches!(stuck[..], [(ReadPhase::Handler, for_ms)] if for_ms >= 10_000), "{stuck:?}");
    assert!(shards.iter().all(|shard| shard.age.is_some()), "{shards:?}");
    assert_eq!(gate.came(), 1, "the call goes on");
    gate.open();
    world.until_all_seen().await;
    pause(3_000).await;
    let shards = health.shards();
    assert!(shards.iter().all(|shard| shard.stuck.is_none()), "{shards:?}");
    assert_eq!(shards.iter().map(|shard| shard.records).sum::<u64>(), 20);
    assert!(shards.iter().all(|shard| shard.behind_latest == Some(0) && shard.bytes > 0));
    worker.stop().await;
    assert!(!health.is_live() && !health.is_ready() && health.shards().is_empty());
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_closed_shard_whose_records_are_all_fetched_waits_for_its_handler_in_peace() {
    let world = ConsumerFixture::ticking(1);
    world.put_round(10);
    world.split(0);
    let note = Arc::new(world.note("one"));
    let consumer = world.consumer(1).with_fan_out().with_settings(|settings| {
        short(settings);
        settings.watchdog.decode_ms = 5_000;
    });
    let worker = RunningWorker::start(consumer.each(move |record: Delivery| {
        let note = Arc::clone(&note);
        async move {
            pause(8_000).await;
            note(record).await
        }
    }));
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    for phase in [ReadPhase::Fetch, ReadPhase::Decode, ReadPhase::Iterator] {
        assert_eq!(world.stuck(phase, WatchdogAction::Restart), 0, "{phase}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_may_be_dropped_is_dropped_and_its_record_comes_again() {
    let world = ConsumerFixture::ticking(1);
    let calls = Arc::new(AtomicUsize::new(0));
    let (note, made) = (Arc::new(world.note("one")), Arc::clone(&calls));
    let consumer = world.consumer(1).each(move |record: Delivery| {
        let (note, made) = (Arc::clone(&note), Arc::clone(&made));
        async move {
            if made.fetch_add(1, Ordering::Relaxed) == 5 {
                std::future::pending::<()>().await;
            }
            note(record).await
        }
    });
    let worker = RunningWorker::start(consumer.with_settings(|settings| {
        short(settings);
        settings.watchdog.drop_handlers = true;
    }));
    world.put_round(20);
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
    assert_eq!(calls.load(Ordering::Relaxed), 21);
    assert_eq!(world.stuck(ReadPhase::Handler, WatchdogAction::Restart), 1);
}

#[tokio::test(start_paused = true)]
async fn a_shards_stream_that_nobody_takes_is_told_and_one_that_may_be_dropped_is_offered_again() {
    for (may_drop, remedy) in [(false, WatchdogAction::Report), (true, WatchdogAction::Restart)] {
        let world = ConsumerFixture::ticking(3);
        let consumer = world.consumer(1).with_settings(|settings| {
            short(settings);
            settings.watchdog.drop_handlers = may_drop;
        });
        let mut shards = consumer.shard_streams(10);
        // One waits to be taken, and two wait for its place.
        world.until("they are told", || world.stuck(ReadPhase::Handler, remedy) >= 2).await;
        let (mut taken, mut names) = (Vec::new(), std::collections::BTreeSet::new());
        while names.len() < 3 {
            taken.push(shards.next().await.unwrap());
            names.extend(taken.last().map(|shard| shard.shard().to_string()));
        }
        shards.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn checkpoints_that_are_never_written_are_told_and_the_lease_is_given_back() {
    let world = ConsumerFixture::ticking(1);
    let off = Arc::new(AtomicBool::new(false));
    let (store, what) = (world.leases.clone(), CutOff::Checkpoints);
    let cut = CutOffStore { store, off: Arc::clone(&off), what };
    let consumer = consumer(&world, cut).with_settings(short);
    let worker = RunningWorker::start(consumer.each(world.note("one")));
    world.put_round(20);
    world.until_all_seen().await;
    off.store(true, Ordering::Relaxed);
    world.put_round(20);
    world.until("it is given back", || world.released()).await;
    assert_eq!(world.stuck(ReadPhase::Checkpoint, WatchdogAction::Report), 1);
    off.store(false, Ordering::Relaxed);
    world.put_round(20);
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert!(world.oracle.duplicates() <= 40, "what was done and never written down comes again");
}

#[test]
fn a_handler_that_blocks_its_thread_is_not_live_while_a_stop_waits_for_it() {
    threads(3).block_on(async {
        let (world, gate) = (ConsumerFixture::new(1), HandlerGate::shut());
        world.put_round(1);
        let consumer = world.consumer(1).each(gate.blocker(&world, "key-0", "one"));
        let health = consumer.health();
        let worker = RunningWorker::start(
            consumer.with_settings(|settings| settings.grace_period = Duration::from_secs(2)),
        );
        world.until("it reads", || health.shards().len() == 1).await;
        pause(500).await;
        assert!(health.is_live());
        worker.ask_to_stop();
        world.until("it can't be stopped", || !health.is_live()).await;
        assert!(health.shards().iter().any(|shard| shard.blocked));
        gate.open();
        let _ = worker.stopped().await;
    });
}

#[test]
fn a_handler_that_blocks_its_thread_and_may_be_dropped_holds_back_its_own_lane_only() {
    threads(3).block_on(async {
        let (world, gate) = (ConsumerFixture::new(1), HandlerGate::shut());
        let handler = gate.blocker(&world, "key-0", "one");
        let consumer = world.consumer(1).with_concurrency(8).each(handler);
        let consumer = consumer.with_settings(|settings| {
            settings.watchdog.handler_ms = 1_000;
            settings.watchdog.drop_handlers = true;
            settings.watchdog.restarts = 1;
        });
        let health = consumer.health();
        let worker = RunningWorker::start(consumer);
        world.put_round(10);
        world.until("it can't be stopped", || !health.is_live()).await;
        let shared = beside_key_0();
        for round in 1..4 {
            world.put_round(10);
            let seen = || {
                let seen = world.oracle.deliveries();
                let others = (0..10).map(|key| format!("key-{key}"));
                let mut others = others.filter(|key| !shared.contains(key));
                others.all(|key| seen.contains(&(key, round)))
            };
            world.until("the other lanes deliver on", seen).await;
            // Long enough for the watchdog to find it still there, and to request its release.
            pause(2_000).await;
        }
        assert_eq!(gate.came(), 1, "the record is not handled twice at once");
        assert!(!world.released() && !health.is_live());
        assert!(health.shards()[0].stuck.is_some(), "the watcher still sees it");
        gate.open();
        world.until_all_seen().await;
        world.until("it is well", || health.is_live()).await;
        worker.stop().await;
        world.oracle.check();
        assert_eq!(world.oracle.duplicates(), 0);
    });
}

/// Decision 5: renewal never shares a task with user code.
#[test]
fn a_handler_that_blocks_its_thread_for_longer_than_the_lease_time_keeps_its_shard() {
    threads(3).block_on(async {
        let world = ConsumerFixture::new(1);
        let (note, blocks) = (world.note("first"), AtomicBool::new(true));
        let consumer = world.consumer(1).each(move |record: Delivery| {
            if blocks.swap(false, Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_secs(4));
            }
            note(record)
        });
        let short = |settings: &mut ConsumerSettings| settings.lease_time = Duration::from_secs(1);
        world.put_round(5);
        let first = RunningWorker::start(consumer.with_settings(short));
        let read = |event: &Event| matches!(event, Event::Shard(ShardEvent::Started { .. }));
        world.until("it reads", || world.told(read)).await;
        // This one only waits for a worker without heartbeats.
        let other = world.consumer(2).with_settings(short).each(world.note("other"));
        let other = RunningWorker::start(other);
        world.until_all_seen().await;
        first.stop().await;
        other.stop().await;
        world.oracle.check();
        assert_eq!((world.oracle.given_to("other"), world.oracle.duplicates()), (0, 0));
    });
}
