//! Dead letters in every kind of queue, and their redrive in the order of their keys.

use crate::outage::{self, CutOff, CutOffStore, beat};
use crate::world::{ConsumerFixture, RunningWorker, pause, until};
use anabranch::clock::{Clock, Rng};
use anabranch::consumer::{
    Batch, Consumer, DeadLetter, DeadLetterError, DeadLetterFile, DeadLetterQueue, DeadLetterTable,
    Delivery, HandlerError, Interrupted, OnError,
};
use anabranch::event::{Event, ShardEvent};
use anabranch::lease::MemoryStore;
use anabranch::stream::LocalKinesis;
use anabranch_local::op::create_stream;
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Key and number of each record that a redrive handed out.
type RedrivenRecords = Arc<Mutex<Vec<(String, usize)>>>;

fn noted(given: &RedrivenRecords, record: &Delivery) {
    let number = std::str::from_utf8(&record.data).unwrap().parse().unwrap();
    given.lock().unwrap().push((record.partition_key.to_string(), number));
}

/// Runs a consumer whose handler fails for the even numbers of two keys. Those are dead-lettered,
/// across a split, and everything else is delivered.
async fn park(world: &ConsumerFixture, to: DeadLetterQueue) {
    let note = world.note("one");
    let consumer = world.consumer(1).with_concurrency(4).each(move |record: Delivery| {
        let number: usize = std::str::from_utf8(&record.data).unwrap().parse().unwrap();
        if number.is_multiple_of(2) && matches!(record.partition_key.as_str(), "key-1" | "key-2") {
            return std::future::ready(Err("poison".into()));
        }
        note(record)
    });
    let worker = RunningWorker::start(consumer.on_error(OnError::DeadLetter { attempts: 2, to }));
    for round in 0..10 {
        world.put_round(4);
        if round == 4 {
            world.split(0);
        }
        pause(300).await;
    }
    world.until("all others are delivered", || world.oracle.seen() == 30).await;
    until("ten are parked", async || parked(world) == 10).await;
    worker.stop().await;
}

fn parked(world: &ConsumerFixture) -> usize {
    let events = world.events.lock().unwrap();
    events.iter().filter(|e| matches!(e, Event::Shard(ShardEvent::DeadLettered { .. }))).count()
}

fn check(given: &RedrivenRecords) {
    for key in ["key-1", "key-2"] {
        let given = given.lock().unwrap();
        let numbers: Vec<_> = given.iter().filter(|(k, _)| k == key).map(|(_, n)| *n).collect();
        assert_eq!(numbers, [0, 2, 4, 6, 8], "{key} in {given:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_kept_from_its_work_parks_nothing_however_often() {
    let folder = tempfile::tempdir().unwrap();
    let to = DeadLetterQueue::from(DeadLetterFile::new(folder.path().join("parked.jsonl")));
    let world = ConsumerFixture::ticking(1);
    (0..5).for_each(|_| world.put_round(4));
    let note = world.note("one");
    let calls = AtomicUsize::new(0);
    let consumer = world.consumer(1).each(move |record: Delivery| {
        if !calls.fetch_add(1, Ordering::SeqCst).is_multiple_of(4) {
            return std::future::ready(Err(Interrupted::because("not now").into()));
        }
        note(record)
    });
    let worker = RunningWorker::start(consumer.on_error(OnError::DeadLetter { attempts: 1, to }));
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(parked(&world), 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_parked_in_a_file_is_redriven_in_the_order_of_its_keys() {
    let folder = tempfile::tempdir().unwrap();
    let to = DeadLetterQueue::from(DeadLetterFile::new(folder.path().join("parked.jsonl")));
    let world = ConsumerFixture::ticking(1);
    park(&world, to.clone()).await;
    redrive(&to).await;
}

#[tokio::test]
async fn what_was_parked_in_a_table_is_redriven_in_the_order_of_its_keys() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new().filename(folder.path().join("parked.db"));
    let pool = SqlitePool::connect_lazy_with(options.create_if_missing(true));
    assert!(DeadLetterTable::sqlite(pool.clone(), "a b").is_err(), "no such name");
    let to = DeadLetterQueue::from(DeadLetterTable::sqlite(pool, "parked").unwrap());
    let world = ConsumerFixture::new(1);
    park(&world, to.clone()).await;
    redrive(&to).await;
}

/// Runs a redrive whose handler fails once, and another that completes it.
async fn redrive(to: &DeadLetterQueue) {
    let given = RedrivenRecords::default();
    let into = Arc::clone(&given);
    let redriven = to.redrive(move |record: Delivery| {
        if record.partition_key.as_str() == "key-1" && &*record.data == b"4" {
            return std::future::ready(Err("not yet"));
        }
        noted(&into, &record);
        std::future::ready(Ok(()))
    });
    let redriven = redriven.await.unwrap();
    assert_eq!((redriven.done, redriven.left, redriven.failures.len()), (7, 3, 1), "{redriven:?}");
    let into = Arc::clone(&given);
    let redriven = to.redrive(move |record: Delivery| {
        noted(&into, &record);
        std::future::ready(Ok::<(), HandlerError>(()))
    });
    let redriven = redriven.await.unwrap();
    assert_eq!((redriven.done, redriven.left), (3, 0), "{redriven:?}");
    check(&given);
    let nothing = to.redrive(|_| std::future::ready(Ok::<(), HandlerError>(()))).await.unwrap();
    assert_eq!(nothing.done, 0, "nothing is left");
}

#[tokio::test(start_paused = true)]
async fn what_was_parked_in_a_stream_is_redriven_by_a_consumer_of_it() {
    let world = ConsumerFixture::ticking(1);
    let request = create_stream::Request {
        stream_name: Some("parked".to_owned()),
        shard_count: Some(2),
        ..Default::default()
    };
    world.engine.create_stream(&request).unwrap();
    let to = DeadLetterQueue::Stream("parked".into());
    park(&world, to.clone()).await;
    let refused = to.redrive(|_| std::future::ready(Ok::<(), HandlerError>(()))).await;
    assert!(matches!(refused, Err(DeadLetterError::RedriveByConsumer(_))), "{refused:?}");
    let given = RedrivenRecords::default();
    let into = Arc::clone(&given);
    let consumer = Consumer::new("parked", "mailer-redrive")
        .with_kinesis(LocalKinesis::new(Arc::clone(&world.engine)))
        .with_leases(MemoryStore::new())
        .with_clock(Clock::of_runtime(), Rng::seeded(2))
        .each(move |record: Delivery| {
            let done = DeadLetter::of(&record).map(|parked| {
                assert_eq!((parked.shard.stream.as_str(), &*parked.error), ("orders", "poison"));
                noted(&into, &parked.delivery());
            });
            std::future::ready(done)
        });
    let worker = RunningWorker::start(consumer);
    until("all are redriven", async || given.lock().unwrap().len() == 10).await;
    worker.stop().await;
    check(&given);
}

#[tokio::test(start_paused = true)]
async fn a_place_that_can_not_be_reached_holds_the_lane_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing/parked.jsonl");
    let world = ConsumerFixture::ticking(1);
    (0..3).for_each(|_| world.put_round(1));
    let note = world.note("one");
    let consumer = world.consumer(1).each(move |record: Delivery| {
        if &*record.data == b"1" {
            return std::future::ready(Err("poison".into()));
        }
        note(record)
    });
    let to = DeadLetterFile::new(&path).into();
    let worker = RunningWorker::start(consumer.on_error(OnError::DeadLetter { attempts: 1, to }));
    let failed = |event: &Event| {
        matches!(event, Event::Shard(ShardEvent::DeadLetterFailed { error, .. })
            if error.contains("parked.jsonl"))
    };
    world.until("it is told", || world.told(failed)).await;
    pause(10_000).await;
    assert_eq!(world.oracle.seen(), 1, "the lane waits");
    std::fs::create_dir(folder.path().join("missing")).unwrap();
    world.until("it goes on", || world.oracle.seen() == 2).await;
    worker.stop().await;
    assert_eq!(parked(&world), 1);
}

/// A worker whose handler fails once it may, and dead-letters the failed record. Its store can be
/// cut off.
struct FailingWorker {
    worker: RunningWorker,
    may_fail: Arc<AtomicBool>,
    off: Arc<AtomicBool>,
}

/// Starts one, and waits until its handler has the only record.
async fn failing(world: &ConsumerFixture, to: DeadLetterQueue) -> FailingWorker {
    let [may_fail, off, called] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
    let (may, told) = (Arc::clone(&may_fail), Arc::clone(&called));
    let handle = move |_: Delivery| {
        let (may, told) = (Arc::clone(&may), Arc::clone(&told));
        async move {
            told.store(true, Ordering::Relaxed);
            while !may.load(Ordering::Relaxed) {
                pause(10).await;
            }
            Err::<(), HandlerError>("its server is gone".into())
        }
    };
    let store =
        CutOffStore { store: world.leases.clone(), off: Arc::clone(&off), what: CutOff::All };
    let consumer = outage::consumer(world, store).each(handle);
    let worker = RunningWorker::start(consumer.on_error(OnError::DeadLetter { attempts: 1, to }));
    world.put("key");
    world.until("the handler has it", || called.load(Ordering::Relaxed)).await;
    FailingWorker { worker, may_fail, off }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_fails_after_the_stop_is_not_parked_and_comes_again() {
    let folder = tempfile::tempdir().unwrap();
    let to = DeadLetterQueue::from(DeadLetterFile::new(folder.path().join("parked.jsonl")));
    let world = ConsumerFixture::ticking(1);
    let FailingWorker { worker, may_fail, .. } = failing(&world, to).await;
    worker.ask_to_stop();
    pause(1_000).await;
    may_fail.store(true, Ordering::Relaxed);
    worker.stopped().await.unwrap();
    assert_eq!(parked(&world), 0, "the next owner tries it");
    let next = world.worker("next", 2);
    world.until_all_seen().await;
    next.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_parked_while_the_lease_is_in_doubt() {
    let folder = tempfile::tempdir().unwrap();
    let to = DeadLetterQueue::from(DeadLetterFile::new(folder.path().join("parked.jsonl")));
    let world = ConsumerFixture::ticking(1);
    let FailingWorker { worker, may_fail, off } = failing(&world, to).await;
    beat(&world).await;
    off.store(true, Ordering::Relaxed);
    // The lease time is ten seconds, and delivery ends after eight.
    pause(8_200).await;
    may_fail.store(true, Ordering::Relaxed);
    pause(1_000).await;
    assert_eq!(parked(&world), 0, "another may be about to take the shard");
    pause(5_000).await;
    assert_eq!(parked(&world), 0, "another may have the shard");
    off.store(false, Ordering::Relaxed);
    until("it is parked by an owner", async || parked(&world) == 1).await;
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_done_of_a_batch_that_failed_stays_done_when_the_lane_stops() {
    let folder = tempfile::tempdir().unwrap();
    let to = DeadLetterQueue::from(DeadLetterFile::new(folder.path().join("parked.jsonl")));
    let world = ConsumerFixture::ticking(1);
    for key in ["good", "poison", "slow"] {
        world.put(key);
    }
    let slow = Arc::new(AtomicBool::new(false));
    let called = Arc::clone(&slow);
    let consumer =
        world.consumer(1).with_settings(|settings| settings.grace_period = Duration::from_secs(1));
    let consumer = consumer.batches(3, move |batch: Batch| {
        let called = Arc::clone(&called);
        async move {
            match &batch.records[..] {
                [one] if *one.partition_key.as_str() == *"good" => Ok(()),
                [one] if *one.partition_key.as_str() == *"slow" => {
                    called.store(true, Ordering::Relaxed);
                    std::future::pending().await
                }
                _ => Err::<(), HandlerError>("it can't do all of these".into()),
            }
        }
    });
    let worker = RunningWorker::start(consumer.on_error(OnError::DeadLetter { attempts: 1, to }));
    world.until("the last one is tried", || slow.load(Ordering::Relaxed)).await;
    assert_eq!(parked(&world), 1);
    worker.stop_short().await;
    let again = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&again);
    let next = RunningWorker::start(world.consumer(2).each(move |record: Delivery| {
        noted.lock().unwrap().push(record.partition_key.to_string());
        std::future::ready(Ok::<(), HandlerError>(()))
    }));
    world.until("the next owner has it", || !again.lock().unwrap().is_empty()).await;
    next.stop().await;
    assert_eq!(*again.lock().unwrap(), ["slow"], "the others are done, or parked");
}
