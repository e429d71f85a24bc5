//! Handlers that fail and panic; a service that throttles, expires iterators and loses replies.

use crate::memory::SlowStream;
use crate::world::{ConsumerFixture, RunningWorker, pause};
use anabranch::consumer::{DeadLetterFile, Delivery, HandlerError, OnError};
use anabranch::event::{Event, ShardEvent, ShardStopReason};
use anabranch::stream::LocalKinesis;
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::Operation;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Returns a handler that fails on every third call and panics on every seventh.
fn shaky(
    world: &ConsumerFixture,
) -> impl Fn(Delivery) -> std::future::Ready<Result<(), HandlerError>> + Send + Sync + 'static {
    let (note, calls) = (world.note("shaky"), Arc::new(AtomicUsize::new(0)));
    move |record| {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        assert!(call % 7 != 3, "on purpose");
        if call % 3 == 1 {
            return std::future::ready(Err("on purpose".into()));
        }
        note(record)
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_whose_handler_fails_or_panics_comes_again_before_the_next() {
    let world = ConsumerFixture::new(2);
    (0..10).for_each(|_| world.put_round(10));
    let worker = RunningWorker::start(world.consumer(1).each(shaky(&world)));
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    // The handler notes completed records: none is completed twice, although many were tried twice.
    assert_eq!(world.oracle.duplicates(), 0);
    let failed = |says: &'static str| {
        world.told(|event| {
            matches!(event, Event::Shard(ShardEvent::HandlerFailed { error, .. }) if error.contains(says))
        })
    };
    assert!(failed("on purpose") && failed("panicked: on purpose"));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_fails_in_every_way_delays_and_loses_nothing() {
    let world = ConsumerFixture::new(2);
    (0..10).for_each(|_| world.put_round(10));
    for (operation, effect) in [
        (Operation::GetRecords, FaultEffect::Throttle),
        (Operation::GetRecords, FaultEffect::InternalError),
        (Operation::GetRecords, FaultEffect::DropReply),
        (Operation::GetShardIterator, FaultEffect::InternalError),
        (Operation::GetShardIterator, FaultEffect::Throttle),
        (Operation::ListShards, FaultEffect::InternalError),
        (Operation::DescribeStreamSummary, FaultEffect::InternalError),
    ] {
        world.strike(operation, effect, 0, 3);
        world.strike(operation, effect, 7, 3);
    }
    let worker = world.worker("one", 1);
    for _ in 0..20 {
        world.put_round(10);
        pause(500).await;
    }
    world.until_all_seen().await;
    // A lost reply would hide other faults, so this runs separately.
    world.engine.faults().clear();
    world.strike(Operation::GetRecords, FaultEffect::ExpireIterator, 0, 3);
    world.put_round(10);
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
    let told = |like: fn(&ShardEvent) -> bool| {
        world.told(|event| matches!(event, Event::Shard(event) if like(event)))
    };
    assert!(told(|event| matches!(event, ShardEvent::FetchFailed { .. })));
    assert!(told(|event| matches!(event, ShardEvent::IteratorRenewed { .. })));
}

#[tokio::test(start_paused = true)]
async fn what_was_done_before_a_task_of_the_worker_breaks_off_does_not_come_again() {
    let world = ConsumerFixture::new(1);
    // It panics in the task that fetches, and ends that task.
    let (api, breaks) = SlowStream::breaking(LocalKinesis::new(Arc::clone(&world.engine)));
    // No checkpoint is due in all that time.
    let consumer = world
        .consumer(1)
        .with_settings(|settings| settings.checkpoint_interval = Duration::from_hours(1));
    let worker = RunningWorker::start(consumer.with_kinesis(api).each(world.note("one")));
    world.put_round(10);
    world.until_all_seen().await;
    breaks.store(true, Ordering::Relaxed);
    world.put_round(10);
    world.until_all_seen().await;
    worker.stop().await;
    let broken = |event: &Event| {
        matches!(event, Event::Shard(ShardEvent::Stopped { why: ShardStopReason::Failed, .. }))
    };
    assert!(world.told(broken));
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_poison_record_is_parked_whole_and_its_lane_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("parked.jsonl");
    let world = ConsumerFixture::new(1);
    (0..5).for_each(|_| world.put_round(3));
    let (note, oracle) = (world.note("one"), world.oracle.clone());
    let consumer = world.consumer(1).each(move |record: Delivery| {
        if &*record.data == b"2" && record.partition_key.as_str() == "key-1" {
            return std::future::ready(Err("poison".into()));
        }
        note(record)
    });
    let to = DeadLetterFile::new(&path).into();
    let worker = RunningWorker::start(consumer.on_error(OnError::DeadLetter { attempts: 3, to }));
    world.until("all but one are delivered", || oracle.seen() == 14).await;
    worker.stop().await;
    let parked = std::fs::read_to_string(&path).unwrap();
    assert_eq!(parked.lines().count(), 1);
    assert!(parked.contains(r#""key":"key-1""#) && parked.contains("poison"), "{parked}");
    let tries = world
        .events
        .lock()
        .unwrap()
        .iter()
        .filter(|event| matches!(event, Event::Shard(ShardEvent::HandlerFailed { .. })))
        .count();
    assert_eq!(tries, 2, "the third failure parks");
}
