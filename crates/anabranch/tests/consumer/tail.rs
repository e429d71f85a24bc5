//! The ephemeral consumer: each key in order, from now on or from a timestamp, with nothing stored.

use crate::memory::SlowStream;
use crate::world::{ConsumerFixture, RunningWorker, STREAM, pause};
use anabranch::clock::{Clock, Rng};
use anabranch::stream::LocalKinesis;
use anabranch::stream::api::{FetchedRecords, ShardIterator, StreamApi, StreamError};
use anabranch::tail::Tail;
use anabranch_local::fault::{FaultEffect, FaultRule};
use anabranch_local::op::Operation;
use anabranch_model::ids::StreamName;
use anabranch_model::position::StartPosition;
use anabranch_model::retry::Fault;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn tail(world: &ConsumerFixture, since: StartPosition) -> Tail<LocalKinesis> {
    let kinesis = LocalKinesis::new(Arc::clone(&world.engine));
    Tail::new(STREAM)
        .with_kinesis(kinesis)
        .since(since)
        .with_clock(Clock::of_runtime(), Rng::seeded(5))
}

/// Takes records until everything that was put has arrived.
async fn follow(world: &ConsumerFixture, tail: &mut Tail<LocalKinesis>) {
    while world.oracle.seen() < world.oracle.puts() {
        let next = tokio::time::timeout(std::time::Duration::from_mins(10), tail.next()).await;
        let record = next.expect("a record comes").unwrap().unwrap();
        world.oracle.delivered(record.partition_key.as_str(), &record.data, "tail");
    }
}

/// Does the same for a new tail: the first call starts it.
async fn follow_from_now(world: &ConsumerFixture, tail: &mut Tail<LocalKinesis>) {
    let first = tail.next().await.unwrap().unwrap();
    world.oracle.delivered(first.partition_key.as_str(), &first.data, "tail");
    follow(world, tail).await;
}

/// Takes records until there are no more. Returns their number.
async fn catch_up(world: &ConsumerFixture, tail: &mut Tail<LocalKinesis>) -> usize {
    let mut count = 0;
    while let Some(record) = tail.next_until_caught_up().await {
        let record = record.unwrap();
        world.oracle.delivered(record.partition_key.as_str(), &record.data, "tail");
        count += 1;
    }
    count
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_is_split_or_merged_while_online_is_drained_before_its_children() {
    let world = ConsumerFixture::ticking(2);
    let mut tail = tail(&world, StartPosition::Latest);
    assert_eq!(catch_up(&world, &mut tail).await, 0);
    for step in 0..6 {
        // Records behind the reshard are there before the parents are drained.
        (0..5).for_each(|_| world.put_round(20));
        match step {
            0 | 3 => world.split(0),
            1 => world.merge(1),
            4 => world.merge(0),
            _ => {}
        }
        (0..5).for_each(|_| world.put_round(20));
        follow(&world, &mut tail).await;
    }
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn who_has_caught_up_has_read_the_children_of_closed_shards_too() {
    for generations in 1..4 {
        let world = ConsumerFixture::ticking(2);
        for _ in 0..generations {
            world.put_round(20);
            world.split(0);
        }
        world.put_round(20);
        let mut tail = tail(&world, StartPosition::TrimHorizon);
        assert_eq!(catch_up(&world, &mut tail).await, world.oracle.puts());
        world.oracle.check();
    }
}

/// An emulator that is never behind, as some are.
struct NeverBehind {
    local: LocalKinesis,
}

impl StreamApi for NeverBehind {
    delegate!(local: describe list_shards iterator consumers subscribe put_records put_record);

    async fn records(
        &self,
        stream: &StreamName,
        iterator: &ShardIterator,
        limit: u32,
    ) -> Result<FetchedRecords, StreamError> {
        let fetched = self.local.records(stream, iterator, limit).await?;
        Ok(FetchedRecords { behind_ms: 0, ..fetched })
    }
}

/// Counts the records until the tail has caught up, yielding to other tasks now and then.
async fn count<A: StreamApi>(tail: Tail<A>) -> usize {
    // With so little memory, parts of replies wait in all shards.
    let mut tail = tail.with_memory_bytes(1);
    let mut count = 0;
    while let Some(record) = tail.next_until_caught_up().await {
        record.unwrap();
        count += 1;
        if count % 100 == 0 {
            tokio::task::yield_now().await;
        }
    }
    count
}

#[tokio::test(start_paused = true)]
async fn neither_a_part_of_a_reply_nor_a_full_one_is_all_of_a_shard() {
    let world = ConsumerFixture::ticking(8);
    (0..100).for_each(|_| world.put_round(1_000));
    let put = world.oracle.puts();
    assert_eq!(count(tail(&world, StartPosition::TrimHorizon)).await, put);
    let local = LocalKinesis::new(Arc::clone(&world.engine));
    let tail =
        Tail::new(STREAM).with_kinesis(NeverBehind { local }).since(StartPosition::TrimHorizon);
    let tail = tail.with_clock(Clock::of_runtime(), Rng::seeded(5));
    assert_eq!(count(tail).await, put, "where nothing says that more is there");
}

#[tokio::test(start_paused = true)]
async fn a_merged_shard_waits_for_a_parent_that_is_itself_still_to_come() {
    let world = ConsumerFixture::ticking(2);
    let mut tail = tail(&world, StartPosition::Latest);
    assert_eq!(catch_up(&world, &mut tail).await, 0);
    // The first shard is slow: its reads fail while the second one is drained.
    world.engine.faults().add(FaultRule {
        operation: Some(Operation::GetRecords),
        stream: None,
        shard: Some("shardId-000000000000".to_owned()),
        probability: 1.0,
        skip: 0,
        count: Some(6),
        effect: FaultEffect::InternalError,
    });
    world.put_round(20);
    world.split(0);
    world.put_round(20);
    world.merge(1);
    world.put_round(20);
    let first = world.open_shards();
    assert_eq!(first.len(), 2, "one child of the split, and the merged shard");
    follow(&world, &mut tail).await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn shards_that_were_closed_before_the_start_are_skipped() {
    let world = ConsumerFixture::ticking(1);
    world.put_data("old", b"0");
    pause(100).await;
    world.split(0);
    world.put_data("old", b"1");
    pause(100).await;
    let mut tail = tail(&world, StartPosition::Latest);
    assert_eq!(catch_up(&world, &mut tail).await, 0, "from now on");
    world.put_round(20);
    assert_eq!(catch_up_to(&world, &mut tail, 20).await, 20);
    world.oracle.check();
}

/// Catches up until `count` records have arrived.
async fn catch_up_to(
    world: &ConsumerFixture,
    tail: &mut Tail<LocalKinesis>,
    count: usize,
) -> usize {
    let mut came = 0;
    while came < count {
        came += catch_up(world, tail).await;
        pause(100).await;
    }
    came
}

#[tokio::test(start_paused = true)]
async fn from_the_oldest_record_on_the_whole_line_comes_in_order() {
    let world = ConsumerFixture::ticking(2);
    for at in [0, 1, 0] {
        (0..3).for_each(|_| world.put_round(20));
        pause(100).await;
        world.split(at);
    }
    world.merge(2);
    (0..3).for_each(|_| world.put_round(20));
    let mut tail = tail(&world, StartPosition::TrimHorizon);
    assert_eq!(catch_up(&world, &mut tail).await, 240);
    world.oracle.check();
}

#[tokio::test(start_paused = true)]
async fn a_start_in_the_past_gives_what_came_since_through_closed_shards() {
    let world = ConsumerFixture::ticking(1);
    world.put_data("old", b"0");
    pause(1_000).await;
    let since = 1_700_000_000_000 + 900;
    world.put_round(20);
    world.split(0);
    world.put_round(20);
    world.merge(0);
    world.put_round(20);
    let mut tail = tail(&world, StartPosition::AtTimestamp(since));
    assert_eq!(catch_up(&world, &mut tail).await, 60);
    world.oracle.check();
}

#[tokio::test(start_paused = true)]
async fn a_service_that_fails_delays_a_tail_and_a_missing_stream_ends_it() {
    let world = ConsumerFixture::ticking(2);
    for operation in [Operation::ListShards, Operation::GetShardIterator, Operation::GetRecords] {
        world.strike(operation, FaultEffect::InternalError, 0, 3);
        world.strike(operation, FaultEffect::Throttle, 5, 3);
    }
    let mut tail = tail(&world, StartPosition::TrimHorizon);
    (0..5).for_each(|_| world.put_round(20));
    follow(&world, &mut tail).await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);

    let kinesis = LocalKinesis::new(Arc::clone(&world.engine));
    let mut other =
        Tail::new("nowhere").with_kinesis(kinesis).with_clock(Clock::of_runtime(), Rng::seeded(1));
    let error = other.next().await.unwrap().unwrap_err();
    assert_eq!(error.fault(), Some(Fault::Missing));
    assert!(error.to_string().contains("nowhere"), "{error}");
    assert!(other.next().await.is_none(), "that was all");
}

#[tokio::test(start_paused = true)]
async fn a_read_that_panics_ends_the_tail_with_an_error() {
    let world = ConsumerFixture::ticking(1);
    world.put_round(20);
    let (panics, breaks) = SlowStream::breaking(LocalKinesis::new(Arc::clone(&world.engine)));
    breaks.store(true, Ordering::Relaxed);
    let mut tail = Tail::new(STREAM).with_kinesis(panics).since(StartPosition::TrimHorizon);
    tail = tail.with_clock(Clock::of_runtime(), Rng::seeded(5));
    let next = tokio::time::timeout(std::time::Duration::from_mins(10), tail.next()).await;
    let error = next.expect("it ends").unwrap().unwrap_err().to_string();
    assert!(error.contains(STREAM) && error.contains("panicked"), "{error}");
    assert!(tail.next().await.is_none(), "that was all");
}

/// Returns a stream whose second shard was split, and whose parent has passed retention since. Also
/// returns a time just after the start, before the children existed.
fn half_trimmed() -> (ConsumerFixture, u64) {
    let born_ms = 1_700_000_000_000;
    let clock = anabranch_local::Clock::manual(born_ms);
    let world = ConsumerFixture::by(clock.clone(), 2);
    clock.advance(3_600_000);
    world.split(1);
    clock.advance(48 * 3_600_000);
    (world, born_ms + 1_000)
}

#[tokio::test(start_paused = true)]
async fn a_start_before_the_stream_was_made_gives_everything() {
    let world = ConsumerFixture::ticking(2);
    world.put_round(20);
    let mut tail = tail(&world, StartPosition::AtTimestamp(1_600_000_000_000));
    assert_eq!(catch_up(&world, &mut tail).await, 20);
    world.oracle.check();
}

#[tokio::test(start_paused = true)]
async fn a_torn_list_at_the_start_leaves_no_key_out() {
    for since in [StartPosition::TrimHorizon, StartPosition::Latest] {
        let world = ConsumerFixture::ticking(2);
        world.strike(Operation::ListShards, FaultEffect::TearList, 0, 2);
        let mut tail = tail(&world, since);
        let puts = async {
            pause(10_000).await;
            world.put_round(20);
        };
        tokio::join!(follow_from_now(&world, &mut tail), puts);
        world.oracle.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_before_retention_leaves_no_key_out() {
    let (world, since) = half_trimmed();
    world.put_round(20);
    let mut tail = tail(&world, StartPosition::AtTimestamp(since));
    follow(&world, &mut tail).await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);

    let consumer = world.consumer(1).starting_at(StartPosition::AtTimestamp(since));
    let before = world.oracle.duplicates();
    let running = RunningWorker::start(consumer.each(world.note("worker")));
    world.until("it comes again", || world.oracle.duplicates() == before + 20).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_does_not_pass_by_itself_ends_the_tail_with_the_services_words() {
    let operations = [Operation::ListShards, Operation::GetShardIterator, Operation::GetRecords];
    for (operation, since) in operations
        .map(|it| (it, StartPosition::Latest))
        .into_iter()
        .chain(operations.map(|it| (it, StartPosition::TrimHorizon)))
    {
        for (effect, fault, words) in [
            (FaultEffect::Deny, Fault::AccessDenied, "not authorized"),
            (FaultEffect::ExpireToken, Fault::CredentialsExpired, "token included in the request"),
        ] {
            let world = ConsumerFixture::ticking(2);
            world.put_round(20);
            world.strike(operation, effect, 0, u64::MAX);
            let mut tail = tail(&world, since);
            let next = tokio::time::timeout(std::time::Duration::from_mins(10), tail.next()).await;
            let error = next.expect("it ends").unwrap().unwrap_err();
            assert_eq!(error.fault(), Some(fault), "{operation} {since:?}");
            let said = error.to_string();
            assert!(said.contains(words) && said.contains(STREAM), "{said}");
            assert!(tail.next().await.is_none(), "that was all");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn credentials_that_are_renewed_in_time_only_delay_a_tail() {
    let world = ConsumerFixture::ticking(2);
    world.put_round(20);
    for operation in [Operation::ListShards, Operation::GetShardIterator, Operation::GetRecords] {
        world.strike(operation, FaultEffect::ExpireToken, 0, 5);
    }
    let mut tail = tail(&world, StartPosition::TrimHorizon);
    follow(&world, &mut tail).await;
    world.oracle.check();
}

#[tokio::test(start_paused = true)]
async fn what_comes_while_a_tail_finds_its_place_is_not_skipped() {
    let world = ConsumerFixture::ticking(2);
    world.put_data("old", b"0");
    pause(5_000).await;
    world.strike(Operation::GetShardIterator, FaultEffect::InternalError, 0, 4);
    let mut tail = tail(&world, StartPosition::Latest);
    tokio::join!(follow_from_now(&world, &mut tail), async {
        pause(30).await;
        world.put_round(20);
    });
    world.oracle.check();
}
