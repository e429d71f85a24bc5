//! Splits and merges, online and offline, with workers that come, go and crash.

use crate::world::{ConsumerFixture, RunningWorker, pause};
use anabranch::consumer::Delivery;
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::Operation;
use std::sync::Arc;

#[tokio::test(start_paused = true)]
async fn online_splits_and_merges_keep_every_key_in_order() {
    let world = ConsumerFixture::new(2);
    let worker = world.worker("one", 1);
    for round in 0..40 {
        world.put_round(30);
        match round {
            5 => world.split(0),
            12 => world.merge(1),
            20 => world.split(1),
            // Two generations before the first is drained.
            28 => {
                world.split(0);
                world.put_round(30);
                world.split(0);
                world.merge(2);
            }
            _ => {}
        }
        pause(150).await;
    }
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn offline_splits_and_merges_keep_every_key_in_order() {
    let world = ConsumerFixture::new(2);
    world.put_round(30);
    let worker = world.worker("before", 1);
    world.until_all_seen().await;
    worker.stop().await;
    for round in 0..8 {
        (0..5).for_each(|_| world.put_round(30));
        if round % 2 == 0 { world.split(round % 2) } else { world.merge(0) }
    }
    (0..5).for_each(|_| world.put_round(30));
    let worker = world.worker("after", 2);
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn reshards_with_a_crash_and_a_stop_lose_nothing_and_keep_order() {
    let world = ConsumerFixture::new(4);
    let mut workers = vec![world.worker("a", 1), world.worker("b", 2)];
    for round in 0..60 {
        world.put_round(40);
        match round {
            10 | 30 => world.split(1),
            20 | 40 => world.merge(2),
            25 => {
                workers.remove(0).kill().await;
                workers.push(world.worker("c", 3));
            }
            45 => {
                workers.remove(0).stop().await;
                workers.push(world.worker("d", 4));
            }
            _ => {}
        }
        pause(300).await;
    }
    world.until_all_seen().await;
    for worker in workers {
        worker.stop().await;
    }
    world.oracle.check();
}

/// Decision 3: children come from the read itself.
#[tokio::test(start_paused = true)]
async fn children_are_read_although_no_list_can_be_had() {
    let world = ConsumerFixture::new(2);
    world.put_round(30);
    let worker = world.worker("one", 1);
    world.until_all_seen().await;
    world.split(0);
    world.put_round(30);
    // Its other parent is a child of the first split.
    world.merge(1);
    world.put_round(30);
    world.strike(Operation::ListShards, FaultEffect::InternalError, 0, u64::MAX);
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_shard_waits_for_its_last_record() {
    for kill in [true, false] {
        let world = ConsumerFixture::ticking(1);
        (0..4).for_each(|_| world.put_round(10));
        // A shard that was closed the moment it was created would not be open at the trim horizon.
        pause(1_000).await;
        world.split(0);
        (0..4).for_each(|_| world.put_round(10));
        let note = Arc::new(world.note("slow"));
        let slow = RunningWorker::start(world.consumer(1).each(move |record: Delivery| {
            let note = Arc::clone(&note);
            async move {
                // The whole shard is fetched long before it is done.
                pause(400).await;
                note(record).await
            }
        }));
        world.until("a part of the parent is done", || world.oracle.seen() >= 10).await;
        pause(3_000).await;
        assert!(world.oracle.seen() < 40, "the parent is not done");
        if kill {
            slow.kill().await;
        } else {
            slow.stop().await;
        }
        let worker = world.worker("next", 2);
        world.until_all_seen().await;
        worker.stop().await;
        world.oracle.check();
    }
}
