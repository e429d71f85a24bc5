//! Processors: KCL's five callbacks, record by record.

mod script;
mod starts;
mod checkpoints;
mod partings;
mod standing;

use crate::world::{ConsumerFixture, RunningWorker, pause};
use anabranch::consumer::Processors;
use script::{ProcessorScript, processors, staged, worker};
use std::sync::atomic::Ordering;

#[tokio::test(start_paused = true)]
async fn processors_keep_order_through_reshards_stops_and_crashes() {
    let world = ConsumerFixture::new(2);
    let script = ProcessorScript::of(&world);
    let first = worker(&world, &script, "first", 1);
    let second = worker(&world, &script, "second", 2);
    for round in 0..30 {
        world.put_round(20);
        match round {
            5 => world.split(0),
            12 => world.merge(1),
            20 => world.split(1),
            _ => {}
        }
        pause(400).await;
    }
    first.kill().await;
    let third = worker(&world, &script, "third", 3);
    (0..10).for_each(|_| world.put_round(20));
    world.until_all_seen().await;
    second.stop().await;
    world.put_round(20);
    world.until_all_seen().await;
    third.stop().await;
    world.oracle.check();
    let ended = world.rows().iter().filter(|row| row.is_ended()).count();
    assert_eq!(ended, 4, "two shards were split and two merged");
    assert!(world.oracle.given_to("second") > 0 && world.oracle.given_to("third") > 0);
}

#[tokio::test(start_paused = true)]
async fn records_whose_call_failed_come_again() {
    let (world, script) = staged(|script| script.bad_batches.store(3, Ordering::SeqCst));
    let worker = worker(&world, &script, "one", 1);
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(script.count("process 10"), 4, "{:?}", script.calls());
}

#[tokio::test(start_paused = true)]
async fn reads_without_records_are_told_to_those_who_ask() {
    let world = ConsumerFixture::new(1);
    let script = ProcessorScript::of(&world);
    let shape = Processors::new(processors(&script, "one")).with_empty_calls().with_most(3);
    let worker = RunningWorker::start(world.consumer(1).with_handler(shape));
    world.until("it is told", || script.count("process 0") > 2).await;
    world.put_round(7);
    world.until_all_seen().await;
    worker.stop().await;
    assert_eq!((script.count("process 3"), script.count("process 1")), (2, 1));
    world.oracle.check();
}

#[tokio::test(start_paused = true)]
async fn a_processor_takes_no_lanes() {
    let world = ConsumerFixture::new(1);
    let script = ProcessorScript::of(&world);
    let consumer = world.consumer(1).processors(processors(&script, "one")).with_concurrency(4);
    let refused = RunningWorker::start(consumer).stopped().await.unwrap_err().to_string();
    assert!(refused.contains("concurrency is 4"), "{refused}");
}
