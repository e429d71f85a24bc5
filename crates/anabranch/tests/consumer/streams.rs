//! Shards as streams whose records are acked one by one, and several streams in one worker.

use crate::outage::{self, CutOff, CutOffStore};
use crate::world::{ConsumerFixture, RunningWorker, STREAM, pause, until};
use anabranch::consumer::{
    Consumer, DeadLetterFile, Delivery, HandlerError, OnError, ShardRecord, ShardStream,
};
use anabranch::event::{Event, LeaseEvent, ShardEvent};
use anabranch::lease::MemoryStore;
use anabranch::stream::LocalKinesis;
use anabranch_local::op::create_stream;
use anabranch_model::lease::Layout;
use anabranch_model::position::StartPosition;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

/// Reports each record of a shard to the oracle, and acks it.
async fn note_all(world: Arc<ConsumerFixture>, mut shard: ShardStream) {
    while let Some(record) = shard.next().await {
        world.oracle.delivered(record.partition_key.as_str(), &record.data, "stream");
        record.ack();
    }
}

#[tokio::test(start_paused = true)]
async fn shard_streams_keep_order_through_reshards_and_stops() {
    let world = Arc::new(ConsumerFixture::new(2));
    for seed in 0..3 {
        let mut shards = world.consumer(seed).shard_streams(100);
        let mut readers = JoinSet::new();
        let (of_readers, mut offered) = tokio::sync::mpsc::channel::<ShardStream>(8);
        let mut taker = JoinSet::new();
        let stop = tokio_util::sync::CancellationToken::new();
        let asked = stop.clone();
        taker.spawn(async move {
            loop {
                tokio::select! {
                    biased;
                    () = asked.cancelled() => return shards.stop().await,
                    Some(shard) = shards.next() => of_readers.send(shard).await.unwrap(),
                }
            }
        });
        let reader = Arc::clone(&world);
        readers.spawn(async move {
            let mut each = JoinSet::new();
            while let Some(shard) = offered.recv().await {
                each.spawn(note_all(Arc::clone(&reader), shard));
            }
            while each.join_next().await.is_some() {}
        });
        for round in 0..10 {
            world.put_round(20);
            match round {
                3 => world.split(0),
                7 => world.merge(1),
                _ => {}
            }
            pause(300).await;
        }
        world.until_all_seen().await;
        stop.cancel();
        taker.join_next().await.unwrap().unwrap().unwrap();
        while readers.join_next().await.is_some() {}
    }
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_acked_while_checkpoints_failed_is_written_before_the_lease_is_given_back() {
    let world = ConsumerFixture::new(1);
    world.put_round(5);
    let off = Arc::new(AtomicBool::new(false));
    let cut =
        CutOffStore { store: world.leases.clone(), off: off.clone(), what: CutOff::Checkpoints };
    let mut shards = outage::consumer(&world, cut).shard_streams(8);
    let mut shard = shards.next().await.unwrap();
    off.store(true, Ordering::Relaxed);
    let mut acked = None;
    for _ in 0..3 {
        let record = shard.next().await.unwrap();
        acked = Some(record.position());
        record.ack();
    }
    drop(shard);
    let stopped = |event: &Event| matches!(event, Event::Shard(ShardEvent::Stopped { .. }));
    world.until("the reading ends", || world.told(stopped)).await;
    assert!(!world.rows()[0].is_started(), "no checkpoint was stored");
    off.store(false, Ordering::Relaxed);
    let released = |event: &Event| matches!(event, Event::Lease(LeaseEvent::LeaseReleased { .. }));
    world.until("the lease is given back", || world.told(released)).await;
    assert_eq!(Some(world.rows()[0].checkpoint.lowest()), acked);
    shards.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_checkpoint_never_passes_a_record_that_is_not_acked() {
    let world = ConsumerFixture::new(1);
    world.put_round(20);
    let mut shards = world.consumer(1).shard_streams(8);
    let mut shard = shards.next().await.unwrap();
    let mut taken: Vec<ShardRecord> = Vec::new();
    for _ in 0..8 {
        taken.push(shard.next().await.unwrap());
    }
    let positions: Vec<_> = taken.iter().map(|record| record.position()).collect();
    let oldest = taken.remove(0);
    taken.into_iter().for_each(ShardRecord::ack);
    // Acked or not, eight are above the watermark: no more arrive.
    tokio::select! {
        biased;
        more = shard.next() => panic!("{more:?}"),
        () = pause(5_000) => {}
    }
    assert!(!world.rows()[0].is_started(), "the oldest is not acked");
    oldest.ack();
    pause(5_000).await;
    assert_eq!(world.rows()[0].checkpoint, positions[7]);
    let next = shard.next().await.unwrap();
    drop(next);
    while let Ok(Some(record)) =
        tokio::time::timeout(std::time::Duration::from_secs(5), shard.next()).await
    {
        record.ack();
    }
    pause(5_000).await;
    assert_eq!(world.rows()[0].checkpoint, positions[7], "one that was dropped is not done");
    shards.stop().await.unwrap();

    // Unacked records are delivered again, in order.
    world.put_round(0);
    let mut shards = world.consumer(2).shard_streams(100);
    let mut shard = shards.next().await.unwrap();
    let first = shard.next().await.unwrap();
    assert!(first.position() > positions[7]);
    first.ack();
    for _ in 0..11 {
        shard.next().await.unwrap().ack();
    }
    shards.stop().await.unwrap();
    assert!(shard.next().await.is_none(), "the stream of a stopped worker has ended");
}

/// Returns the numbers of the records that a shard's stream yields within five seconds, and acks
/// them.
pub(crate) async fn numbers(shard: &mut ShardStream) -> Vec<usize> {
    let mut numbers = Vec::new();
    let soon = std::time::Duration::from_secs(5);
    while let Ok(Some(record)) = tokio::time::timeout(soon, shard.next()).await {
        numbers.push(std::str::from_utf8(&record.data).unwrap().parse().unwrap());
        record.ack();
    }
    numbers
}

#[tokio::test(start_paused = true)]
async fn what_waits_in_a_stream_that_a_stop_ends_comes_again() {
    let world = ConsumerFixture::new(1);
    (0..10).for_each(|_| world.put("key"));
    let mut shards = world.consumer(1).shard_streams(100);
    let mut shard = shards.next().await.unwrap();
    let first = shard.next().await.unwrap();
    let at = first.position();
    // The others have arrived too.
    pause(3_000).await;
    let user = async move {
        pause(1_000).await;
        first.ack();
        assert!(shard.next().await.is_none(), "the stop has ended it");
    };
    let (stopped, ()) = tokio::join!(shards.stop(), user);
    stopped.unwrap();
    assert_eq!(world.rows()[0].checkpoint, at, "nobody has seen the others");
    let mut shards = world.consumer(2).shard_streams(100);
    let mut shard = shards.next().await.unwrap();
    assert_eq!(numbers(&mut shard).await, (1..10).collect::<Vec<_>>());
    shards.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_dropped_before_its_closed_shard_is_done_is_offered_again() {
    // Number of acked records of the three that were taken, and whether the rest are taken too.
    for (acked, all_taken) in [(3, false), (2, false), (2, true), (0, false)] {
        let world = ConsumerFixture::new(1);
        (0..10).for_each(|_| world.put("key"));
        world.split(0);
        let mut shards = world.consumer(1).shard_streams(100);
        let mut shard = shards.next().await.unwrap();
        let parent = Arc::clone(shard.shard());
        let mut taken = Vec::new();
        for _ in 0..3 {
            taken.push(shard.next().await.unwrap());
        }
        taken.drain(..acked).for_each(ShardRecord::ack);
        if all_taken {
            assert_eq!(numbers(&mut shard).await.len(), 7);
        }
        // Everything has arrived, including the end of the shard.
        pause(5_000).await;
        drop((shard, taken));
        let mut again = shards.next().await.unwrap();
        assert_eq!(again.shard(), &parent, "{acked} are acked");
        assert!(!world.rows()[0].is_ended());
        assert_eq!(numbers(&mut again).await, (acked..10).collect::<Vec<_>>());
        let child = shards.next().await.unwrap();
        assert_ne!(child.shard(), &parent);
        drop(shards);
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_acks_of_a_closed_shard_may_come_after_its_stream_is_dropped() {
    let world = ConsumerFixture::new(1);
    world.put_round(5);
    world.split(0);
    let mut shards = world.consumer(1).shard_streams(100);
    let mut shard = shards.next().await.unwrap();
    let parent = Arc::clone(shard.shard());
    let mut taken = Vec::new();
    while let Some(record) = shard.next().await {
        taken.push(record);
    }
    drop(shard);
    tokio::select! {
        biased;
        offered = shards.next() => panic!("{offered:?}"),
        () = pause(30_000) => {}
    }
    taken.into_iter().for_each(ShardRecord::ack);
    let child = shards.next().await.unwrap();
    assert_ne!(child.shard(), &parent);
    assert!(world.rows()[0].is_ended());
}

#[tokio::test(start_paused = true)]
async fn children_come_after_the_last_ack_of_their_parent() {
    let world = ConsumerFixture::new(1);
    world.put_round(5);
    world.split(0);
    let mut shards = world.consumer(1).shard_streams(100);
    let mut shard = shards.next().await.unwrap();
    let mut last = None;
    while let Some(record) = shard.next().await {
        if let Some(before) = last.replace(record) {
            ShardRecord::ack(before);
        }
    }
    tokio::select! {
        biased;
        child = shards.next() => panic!("{child:?}"),
        () = pause(30_000) => {}
    }
    assert!(!world.rows()[0].is_ended());
    last.unwrap().ack();
    for _ in 0..2 {
        let child = shards.next().await.unwrap();
        assert_ne!(child.shard(), shard.shard());
        std::mem::forget(child);
    }
    assert!(world.rows()[0].is_ended());
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_dropped_is_offered_again() {
    let world = ConsumerFixture::new(1);
    world.put_round(5);
    let mut shards = world.consumer(1).shard_streams(100);
    drop(shards.next().await.unwrap());
    let mut again = shards.next().await.unwrap();
    for _ in 0..5 {
        again.next().await.unwrap().ack();
    }
    shards.stop().await.unwrap();
    assert!(world.rows()[0].is_started());
}

#[tokio::test(start_paused = true)]
async fn what_was_taken_since_a_start_at_latest_and_not_acked_comes_again() {
    let mut world = ConsumerFixture::ticking(1);
    // The only layout whose rows are created at LATEST.
    world.leases = MemoryStore::with_layout(Layout::Kcl);
    let latest = |seed| world.consumer(seed).starting_at(StartPosition::Latest).shard_streams(10);
    let mut shards = latest(1);
    let mut shard = shards.next().await.unwrap();
    pause(5_000).await;
    world.put("key");
    let taken = shard.next().await.unwrap();
    // Long enough for checkpoints, of which none is due.
    pause(5_000).await;
    drop(shards);
    pause(60_000).await;
    let mut shards = latest(2);
    let mut again = shards.next().await.unwrap();
    assert_eq!(numbers(&mut again).await, [0]);
    drop((taken, shard));
    shards.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_parked_because_a_stream_was_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let world = ConsumerFixture::new(1);
    (0..200).for_each(|_| world.put("key"));
    let off = Arc::new(AtomicBool::new(false));
    let store = CutOffStore {
        store: world.leases.clone(),
        off: Arc::clone(&off),
        what: CutOff::Checkpoints,
    };
    let to = DeadLetterFile::new(folder.path().join("parked.jsonl")).into();
    let consumer =
        outage::consumer(&world, store).on_error(OnError::DeadLetter { attempts: 1, to });
    let mut shards = consumer.shard_streams(200);
    let mut shard = shards.next().await.unwrap();
    let first = shard.next().await.unwrap();
    // The worker is busy with an unanswered checkpoint, and does not see the drop at once.
    off.store(true, Ordering::Relaxed);
    first.ack();
    pause(3_000).await;
    drop(shard);
    pause(1_000).await;
    off.store(false, Ordering::Relaxed);
    let mut again = shards.next().await.unwrap();
    assert_eq!(numbers(&mut again).await, (1..200).collect::<Vec<_>>());
    shards.stop().await.unwrap();
    let parked = |event: &Event| matches!(event, Event::Shard(ShardEvent::DeadLettered { .. }));
    assert!(!world.told(parked), "no record has a fault");
}

#[tokio::test(start_paused = true)]
async fn what_was_acked_before_a_stream_is_dropped_does_not_come_again() {
    for stops in [true, false] {
        let world = ConsumerFixture::new(1);
        (0..10).for_each(|_| world.put("key"));
        // No checkpoint is due in all that time.
        let consumer = |seed| {
            world.consumer(seed).with_settings(|settings| {
                settings.checkpoint_interval = Duration::from_hours(1);
            })
        };
        let mut shards = consumer(1).shard_streams(100);
        let mut shard = shards.next().await.unwrap();
        for _ in 0..6 {
            shard.next().await.unwrap().ack();
        }
        drop(shard);
        if stops {
            shards.stop().await.unwrap();
            shards = consumer(2).shard_streams(100);
        }
        let mut again = shards.next().await.unwrap();
        let came = numbers(&mut again).await;
        assert_eq!(came, (6..10).collect::<Vec<_>>(), "the worker is stopped: {stops}");
        drop(shards);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_taken_may_be_acked_after_its_stream_is_dropped() {
    // Delay of the acks, whether the worker is stopped meanwhile, and whether the acks count.
    for (late_ms, stops, counts) in
        [(3_000, false, true), (3_000, true, true), (7_000, false, false)]
    {
        let world = ConsumerFixture::new(1);
        (0..10).for_each(|_| world.put("key"));
        let mut shards = world.consumer(1).shard_streams(100);
        let mut shard = shards.next().await.unwrap();
        let mut taken = Vec::new();
        for _ in 0..6 {
            taken.push(shard.next().await.unwrap());
        }
        drop(shard);
        let acks = async {
            pause(late_ms).await;
            taken.into_iter().for_each(ShardRecord::ack);
        };
        if stops {
            tokio::join!(shards.stop(), acks).0.unwrap();
            shards = world.consumer(2).shard_streams(100);
        } else {
            acks.await;
        }
        let mut again = shards.next().await.unwrap();
        let first = if counts { 6 } else { 0 };
        let came = numbers(&mut again).await;
        assert_eq!(came, (first..10).collect::<Vec<_>>(), "{late_ms} ms, stopped: {stops}");
        drop(shards);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_no_record_that_was_dropped() {
    let world = ConsumerFixture::new(1);
    (0..2).for_each(|_| world.put("key"));
    let consumer =
        world.consumer(1).with_settings(|settings| settings.grace_period = Duration::from_hours(1));
    let mut shards = consumer.shard_streams(100);
    let mut shard = shards.next().await.unwrap();
    let acked = shard.next().await.unwrap();
    let at = acked.position();
    acked.ack();
    drop(shard.next().await.unwrap());
    let user = async move {
        // Once the stream is gone too, nothing can be acked any more.
        assert!(shard.next().await.is_none(), "the stop has ended it");
    };
    let stopped = async { tokio::join!(shards.stop(), user).0 };
    let soon = std::time::Duration::from_mins(1);
    tokio::time::timeout(soon, stopped).await.expect("nothing is waited for").unwrap();
    assert_eq!(world.rows()[0].checkpoint, at);
}

fn create(world: &ConsumerFixture, name: &str) {
    let request = create_stream::Request {
        stream_name: Some(name.to_owned()),
        shard_count: Some(2),
        ..Default::default()
    };
    world.engine.create_stream(&request).unwrap();
}

#[tokio::test(start_paused = true)]
async fn streams_are_added_and_removed_while_the_consumer_runs() {
    let world = ConsumerFixture::new(2);
    for name in ["bills", "cards"] {
        create(&world, name);
    }
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let into = Arc::clone(&seen);
    let handle = move |record: Delivery| {
        into.lock().unwrap().push(format!("{} {}", record.shard.stream, record.partition_key));
        std::future::ready(Ok::<(), HandlerError>(()))
    };
    let mut consumer = Consumer::streams([STREAM, "bills"], "mailer")
        .with_kinesis(LocalKinesis::new(Arc::clone(&world.engine)))
        .with_leases(world.leases.clone())
        .with_clock(anabranch::clock::Clock::of_runtime(), anabranch::clock::Rng::seeded(1))
        .each(handle);
    let control = consumer.control();
    let worker = RunningWorker::start(consumer);
    let came = |what: &str| seen.lock().unwrap().iter().filter(|it| *it == what).count();
    let put = |stream: &str| world.put_into(stream, "key", b"data");
    for stream in [STREAM, "bills", "cards"] {
        put(stream);
    }
    until("both streams are read", async || came("orders key") == 1 && came("bills key") == 1)
        .await;
    pause(10_000).await;
    assert_eq!(came("cards key"), 0, "nobody has added it");

    control.add("cards", StartPosition::TrimHorizon).await.unwrap();
    until("the new one is read", async || came("cards key") == 1).await;
    let twice = control.add("cards", StartPosition::TrimHorizon).await.unwrap_err();
    assert!(twice.to_string().contains("cards"), "{twice}");
    let missing = control.add("nowhere", StartPosition::TrimHorizon).await.unwrap_err();
    assert!(missing.to_string().contains("nowhere"), "{missing}");

    assert_eq!(control.remove("bills").await.unwrap(), []);
    put("bills");
    put(STREAM);
    until("the others go on", async || came("orders key") == 2).await;
    pause(30_000).await;
    assert_eq!(came("bills key"), 1, "it is read no longer");
    let owned = |stream: &str| {
        let table = world.leases.snapshot();
        table.leases(&stream.into()).filter(|lease| lease.owner.is_some()).count()
    };
    assert_eq!((owned("bills"), owned("cards"), owned(STREAM)), (0, 2, 2));

    control.add("bills", StartPosition::TrimHorizon).await.unwrap();
    until("it goes on where it stood", async || came("bills key") == 2).await;
    worker.stop().await;
    let late = control.remove("cards").await.unwrap_err();
    assert!(late.to_string().contains("stopped"), "{late}");
}
