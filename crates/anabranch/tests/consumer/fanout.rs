//! Enhanced fan-out: pushed records, and subscriptions that end, fail or conflict with each other.

use crate::memory::SlowStream;
use crate::world::{ConsumerFixture, RunningWorker, STREAM, pause};
use anabranch::clock::{Clock, Rng};
use anabranch::consumer::{Consumer, Delivery, HandlerError, remove_fan_out};
use anabranch::event::{Event, ShardEvent};
use anabranch::lease::MemoryStore;
use anabranch::stream::LocalKinesis;
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::Operation;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl ConsumerFixture {
    fn fan_out(&self, by: &'static str, seed: u64) -> RunningWorker {
        RunningWorker::start(self.consumer(seed).with_fan_out().each(self.note(by)))
    }
}

#[tokio::test(start_paused = true)]
async fn pushed_records_keep_their_order_through_reshards_and_stops() {
    let world = ConsumerFixture::ticking(2);
    let mut workers = vec![world.fan_out("a", 1), world.fan_out("b", 2)];
    for round in 0..40 {
        world.put_round(20);
        match round {
            8 => world.split(1),
            16 => world.merge(0),
            24 => {
                workers.remove(0).stop().await;
                workers.push(world.fan_out("c", 3));
            }
            _ => {}
        }
        pause(500).await;
    }
    world.until_all_seen().await;
    for worker in workers {
        worker.stop().await;
    }
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
    assert!(!world.told(is_contested), "a hand-over is no contest");
}

/// Returns true if an event reports that another reader takes subscriptions away.
fn is_contested(event: &Event) -> bool {
    matches!(event, Event::Shard(ShardEvent::FetchFailed { error, .. }) if error.contains("named mailer"))
}

#[tokio::test(start_paused = true)]
async fn two_that_share_a_consumer_name_are_told_so() {
    let world = ConsumerFixture::ticking(1);
    // The same application on other leases, as in another environment.
    let other = Consumer::new(STREAM, "mailer")
        .with_kinesis(LocalKinesis::new(Arc::clone(&world.engine)))
        .with_leases(MemoryStore::new())
        .with_clock(Clock::of_runtime(), Rng::seeded(7))
        .with_fan_out();
    let other = RunningWorker::start(
        other.each(|_: Delivery| std::future::ready(Ok::<(), HandlerError>(()))),
    );
    let worker = world.fan_out("one", 1);
    world.put_round(5);
    world.until("it is told", || world.told(is_contested)).await;
    world.until_all_seen().await;
    worker.stop().await;
    other.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_ends_after_five_minutes_is_followed_without_gap_or_repetition() {
    let world = ConsumerFixture::ticking(1);
    let worker = world.fan_out("one", 1);
    for _ in 0..120 {
        world.put_round(3);
        pause(6_000).await;
    }
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
    let failed = |event: &Event| matches!(event, Event::Shard(ShardEvent::FetchFailed { .. }));
    assert!(!world.told(failed), "the end of a subscription is no failure");
}

#[tokio::test(start_paused = true)]
async fn subscriptions_that_fail_are_made_again() {
    let world = ConsumerFixture::ticking(2);
    world.strike(Operation::SubscribeToShard, FaultEffect::InternalError, 1, 3);
    world.strike(Operation::SubscribeToShard, FaultEffect::Throttle, 5, 2);
    world.strike(Operation::RegisterStreamConsumer, FaultEffect::InternalError, 0, 2);
    world.strike(Operation::DescribeStreamConsumer, FaultEffect::Throttle, 0, 2);
    let worker = world.fan_out("one", 1);
    (0..10).for_each(|_| world.put_round(10));
    world.until_all_seen().await;
    // The consumer is deregistered: the worker registers it again.
    let api = LocalKinesis::new(Arc::clone(&world.engine));
    assert!(remove_fan_out(&api, &STREAM.into(), "mailer").await.unwrap());
    (0..10).for_each(|_| world.put_round(10));
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
    assert!(remove_fan_out(&api, &STREAM.into(), "mailer").await.unwrap());
    assert!(!remove_fan_out(&api, &STREAM.into(), "mailer").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn subscriptions_that_end_before_their_first_event_are_not_made_again_at_once() {
    let world = ConsumerFixture::ticking(1);
    let local = LocalKinesis::new(Arc::clone(&world.engine));
    let (remote, subscribed) = SlowStream::hanging_up(local, 5);
    let consumer = Consumer::new(STREAM, "mailer")
        .with_kinesis(remote)
        .with_leases(world.leases.clone())
        .with_clock(Clock::of_runtime(), Rng::seeded(1))
        .with_fan_out();
    let worker = RunningWorker::start(consumer.each(world.note("one")));
    world.until("it subscribes", || subscribed.load(Ordering::Relaxed) > 0).await;
    pause(400).await;
    let asked = subscribed.load(Ordering::Relaxed);
    assert!(asked < 5, "{asked} subscriptions within half a second");
    world.put_round(5);
    world.until_all_seen().await;
    worker.stop().await;
}
