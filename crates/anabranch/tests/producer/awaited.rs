//! Awaited outcomes: a record whose ticket is awaited leaves early when no more records are put.

use crate::stage::{ProducerFixture, STREAM};
use anabranch::clock::Clock;
use anabranch::producer::{Producer, ProducerBuilder, Ticket};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const LINGER: Duration = Duration::from_mins(1);
const QUIET: Duration = Duration::from_secs(15);

fn lingering() -> ProducerBuilder {
    Producer::new(STREAM).with_linger(LINGER).with_clock(Clock::of_runtime())
}

/// Returns a producer that knows the shards, and the ticket of a lingering record.
async fn with_a_record(stage: &ProducerFixture) -> (Producer, Ticket) {
    let producer = lingering().with_kinesis(stage.api()).start().await.unwrap();
    assert!(producer.put("first", "0").await.unwrap().await.is_placed());
    let ticket = producer.put("key", "1").await.unwrap();
    (producer, ticket)
}

#[tokio::test(start_paused = true)]
async fn a_record_that_nobody_waits_for_waits_for_others() {
    let (_producer, ticket) = with_a_record(&ProducerFixture::new(1)).await;
    sleep(LINGER * 9 / 10).await;
    assert!(ticket.try_outcome().is_none());
    sleep(LINGER / 5).await;
    assert!(ticket.try_outcome().unwrap().is_placed());
}

#[tokio::test(start_paused = true)]
async fn a_record_that_someone_waits_for_leaves_when_nothing_more_is_put() {
    let (_producer, mut ticket) = with_a_record(&ProducerFixture::new(1)).await;
    let began = Instant::now();
    assert!(timeout(QUIET / 2, &mut ticket).await.is_err(), "there may come more");
    assert!(timeout(QUIET, &mut ticket).await.unwrap().is_placed());
    assert!(began.elapsed() >= QUIET * 9 / 10, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn whoever_begins_to_wait_late_does_not_wait_long() {
    let (_producer, ticket) = with_a_record(&ProducerFixture::new(1)).await;
    sleep(LINGER / 2).await;
    assert!(ticket.try_outcome().is_none(), "nobody waited");
    assert!(timeout(Duration::from_millis(100), ticket).await.unwrap().is_placed());
}

#[tokio::test(start_paused = true)]
async fn while_more_is_put_the_whole_linger_is_waited_for() {
    let (producer, mut ticket) = with_a_record(&ProducerFixture::new(1)).await;
    let began = Instant::now();
    let outcome = loop {
        match timeout(QUIET * 2 / 3, &mut ticket).await {
            Ok(outcome) => break outcome,
            Err(_) => drop(producer.put("other", "2").await.unwrap()),
        }
    };
    assert!(outcome.is_placed() && began.elapsed() >= LINGER, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_put_that_waits_for_room_does_not_wait_for_the_linger() {
    let stage = ProducerFixture::new(4);
    let producer =
        lingering().with_buffer_bytes(64 * 1024).with_kinesis(stage.api()).start().await.unwrap();
    let began = Instant::now();
    for number in 0..40 {
        // No shard has enough for a Kinesis record when the buffer is full.
        drop(producer.put(format!("{number}"), vec![7; 10_000]).await.unwrap());
    }
    // The buffer is full every six records.
    assert!(began.elapsed() < QUIET * 8, "{:?}", began.elapsed());
    producer.flush().await;
    assert_eq!(producer.stats().placed, 40);
}

#[tokio::test(start_paused = true)]
async fn all_that_wait_for_room_get_it_without_the_linger_and_not_only_the_first() {
    let stage = ProducerFixture::new(4);
    let producer =
        lingering().with_buffer_bytes(64 * 1024).with_kinesis(stage.api()).start().await.unwrap();
    assert!(producer.put("first", "0").await.unwrap().await.is_placed());
    let began = Instant::now();
    let mut puts = tokio::task::JoinSet::new();
    for _ in 0..5 {
        // Each takes more than half of the buffer, and no shard has enough of it for a Kinesis
        // record.
        let bulk = (0..4).map(|number| (format!("{number}"), vec![7; 10_000])).collect();
        let producer = producer.clone();
        puts.spawn(async move { drop(producer.put_bulk(bulk).await.unwrap()) });
    }
    while let Some(put) = puts.join_next().await {
        put.unwrap();
    }
    assert!(began.elapsed() < QUIET * 5, "{:?}", began.elapsed());
    producer.flush().await;
    assert_eq!(producer.stats().placed, 21);
}
