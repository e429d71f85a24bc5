//! Aggregates among plain records, and a stop inside one.

use crate::world::{ConsumerFixture, RunningWorker, STREAM, pause};
use anabranch::clock::{Clock, Rng};
use anabranch::consumer::Delivery;
use anabranch::event::{Event, ShardEvent};
use anabranch::producer::Producer;
use anabranch::stream::LocalKinesis;
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::Operation;
use anabranch_model::aggregate::encode::{AggregateBuilder, AggregateRecord, PushResult};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio_util::sync::CancellationToken;

impl ConsumerFixture {
    /// Puts one aggregate with the next record of each of these keys.
    fn put_aggregate(&self, keys: &[&str]) {
        let mut builder = AggregateBuilder::new();
        for key in keys {
            let data = self.oracle.put(key).to_string();
            let entry = AggregateRecord {
                partition_key: key,
                explicit_hash_key: None,
                data: data.as_bytes(),
            };
            assert_eq!(builder.add_within(&entry, 1 << 20), PushResult::Added);
        }
        let container = builder.close().unwrap().seal();
        self.put_data(container.partition_key.as_str(), &container.data);
    }
}

#[tokio::test(start_paused = true)]
async fn aggregates_are_taken_apart_among_plain_records() {
    let world = ConsumerFixture::new(1);
    for _ in 0..20 {
        world.put_aggregate(&["a", "b", "a", "c", "b", "a"]);
        world.put("a");
        world.put("d");
    }
    for lanes in [1, 4] {
        let worker =
            RunningWorker::start(world.consumer(1).with_concurrency(lanes).each(world.note("one")));
        world.until_all_seen().await;
        worker.stop().await;
        world.put_aggregate(&["a", "b", "a"]);
    }
    let worker = world.worker("two", 2);
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!((world.oracle.duplicates(), world.oracle.given_to("two")), (0, 3));
}

#[tokio::test(start_paused = true)]
async fn a_stop_inside_an_aggregate_goes_on_inside_it() {
    let world = ConsumerFixture::new(1);
    world.put_aggregate(&["a", "b", "a", "c", "b", "a"]);
    let (note, calls) = (Arc::new(world.note("first")), Arc::new(AtomicUsize::new(0)));
    let third = CancellationToken::new();
    let reached = third.clone();
    let consumer = world.consumer(1).each(move |record: Delivery| {
        let (note, reached) = (Arc::clone(&note), reached.clone());
        let call = calls.fetch_add(1, Ordering::Relaxed);
        async move {
            if call == 2 {
                // The stop is requested in the middle of the third record's call.
                reached.cancel();
                pause(1_000).await;
            }
            note(record).await
        }
    });
    consumer.run_until(async move { third.cancelled().await }).await.unwrap();
    assert_eq!(world.oracle.seen(), 3);
    let worker = world.worker("second", 2);
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
    assert_eq!(world.oracle.given_to("first") + world.oracle.given_to("second"), 6);
}

#[tokio::test(start_paused = true)]
async fn an_aggregate_with_a_record_of_another_shard_is_dropped_whole_and_told() {
    let world = ConsumerFixture::new(8);
    // No shard of eight takes all of these keys.
    let mut builder = AggregateBuilder::new();
    for key in 0..50 {
        let key = format!("stray-{key}");
        let entry = AggregateRecord { partition_key: &key, explicit_hash_key: None, data: b"x" };
        assert_eq!(builder.add_within(&entry, 1 << 20), PushResult::Added);
    }
    world.put_data("a", &builder.close().unwrap().seal().data);
    world.put_round(10);
    let worker = world.worker("one", 1);
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.deliveries().len(), 10);
    let dropped = |event: &Event| {
        matches!(event, Event::Shard(ShardEvent::AggregateMisrouted { records: 50, .. }))
    };
    assert!(world.told(dropped));
}

#[tokio::test(start_paused = true)]
async fn the_second_copy_of_a_marked_aggregate_is_dropped_and_told() {
    for marks in [false, true] {
        let world = ConsumerFixture::new(2);
        let api = LocalKinesis::new(Arc::clone(&world.engine));
        let producer = Producer::new(STREAM)
            .with_clock(Clock::of_runtime())
            .with_rng(Rng::seeded(3))
            .with_dedup_tags(marks)
            .with_kinesis(api)
            .start()
            .await
            .unwrap();
        // Once the shard map is known, records are sent in aggregates.
        let data = world.oracle.put("first").to_string();
        assert!(producer.put("first", data).await.unwrap().await.is_placed());
        for round in 0..3 {
            if round == 2 {
                // The last request is placed, and its reply is lost.
                world.strike(Operation::PutRecords, FaultEffect::DropReply, 0, 1);
            }
            for key in 0..20 {
                let key = format!("key-{key}");
                let data = world.oracle.put(&key).to_string();
                drop(producer.put(key, data).await.unwrap());
            }
            producer.flush().await;
            assert_eq!(producer.stats().placed, 1 + 20 * (round + 1));
        }
        let worker = world.worker("one", 1);
        world.until_all_seen().await;
        pause(5_000).await;
        worker.stop().await;
        // No duplicate is delivered when another worker continues behind it.
        let worker = world.worker("two", 2);
        pause(60_000).await;
        worker.stop().await;
        world.oracle.check();
        let repeated = if marks { 0 } else { 20 };
        assert_eq!(world.oracle.duplicates(), repeated, "marks: {marks}");
        assert_eq!(world.oracle.given_to("two"), 0);
        let told =
            |event: &Event| matches!(event, Event::Shard(ShardEvent::DuplicateDropped { .. }));
        assert_eq!(world.told(told), marks);
    }
}

#[tokio::test(start_paused = true)]
async fn producers_that_drew_the_same_number_lose_nothing_to_each_other() {
    let world = ConsumerFixture::new(1);
    for _ in 0..2 {
        // Like a process that is started again from the same snapshot.
        let producer = Producer::new(STREAM)
            .with_clock(Clock::of_runtime())
            .with_rng(Rng::seeded(3))
            .with_dedup_tags(true)
            .with_kinesis(LocalKinesis::new(Arc::clone(&world.engine)))
            .start()
            .await
            .unwrap();
        for _ in 0..2 {
            for key in 0..20 {
                let key = format!("key-{key}");
                let data = world.oracle.put(&key).to_string();
                drop(producer.put(key, data).await.unwrap());
            }
            producer.flush().await;
        }
    }
    let worker = world.worker("one", 1);
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}
