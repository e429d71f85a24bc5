//! How processors part with their shard: at a stop, at its end, when it is lost.

use super::script::{processors, staged, worker};
use crate::world::{Running, World};
use anabranch::event::{Event, ShardEvent};
use anabranch::lease::LeaseStore as _;
use std::sync::atomic::Ordering;

#[tokio::test(start_paused = true)]
async fn a_stop_asks_for_a_last_checkpoint_and_repeats_nothing() {
    let (world, script) = staged(|script| script.lazy.store(true, Ordering::SeqCst));
    let first = worker(&world, &script, "first", 1);
    world.until_all_seen().await;
    first.stop().await;
    let calls = ["0 initialize", "0 process 10", "0 shutdown_requested", "0 lease_lost", "0 heard"];
    assert_eq!(script.calls(), calls);
    world.put_round(10);
    let second = worker(&world, &script, "second", 2);
    world.until_all_seen().await;
    second.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_is_dropped_at_the_end_of_the_grace() {
    let (world, script) = staged(|script| script.hangs.store(true, Ordering::SeqCst));
    let first = worker(&world, &script, "first", 1);
    world.until("it hangs", || script.count("process 10") == 1).await;
    let broken_off = first.stop_short().await;
    assert_eq!(broken_off.iter().map(|call| call.records).collect::<Vec<_>>(), [10]);
    assert_eq!(script.calls(), ["0 initialize", "0 process 10", "0 lease_lost", "0 heard"]);
    assert_eq!(world.rows()[0].owner, None, "the lease was given back");
}

#[tokio::test(start_paused = true)]
async fn children_wait_for_a_processor_that_checkpoints_the_end() {
    let (world, script) = staged(|script| script.forgetful.store(true, Ordering::SeqCst));
    world.split(0);
    world.put_round(10);
    let worker = worker(&world, &script, "one", 1);
    world.until("the end is told again and again", || script.count("shard_ended") > 3).await;
    assert_eq!(world.oracle.seen(), 10, "the children wait");
    assert!(!world.rows()[0].is_ended());
    let named = |event: &Event| {
        matches!(event, Event::Shard(ShardEvent::CallFailed { call: "shard_ended", error, .. })
            if error.contains("checkpoint"))
    };
    assert!(world.told(named), "it is said by name");
    script.forgetful.store(false, Ordering::SeqCst);
    world.until_all_seen().await;
    assert!(world.rows()[0].is_ended());
    worker.stop().await;
    world.oracle.check();
    assert_eq!(script.count("0 lease_lost"), 0, "an ended shard is not lost");
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_told_once_and_nothing_else_is() {
    let (world, script) = staged(|_| ());
    let worker = worker(&world, &script, "one", 1);
    world.until_all_seen().await;
    steal(&world).await;
    world.put_round(1);
    world.until("it is told", || script.count("lease_lost") == 1).await;
    assert_eq!(script.count("shutdown_requested"), 0);
    worker.kill().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_leaves_time_to_hear_of_it_and_one_that_is_given_back_little() {
    for (lost, heard) in [(true, 1), (false, 0)] {
        let (world, script) = staged(|script| script.loss_ms.store(20_000, Ordering::SeqCst));
        let consumer = world.consumer(1).with_settings(|settings| settings.lease_lost_ms = 30_000);
        let worker = Running::start(consumer.processors(processors(&script, "one")));
        world.until_all_seen().await;
        if lost {
            steal(&world).await;
            world.put_round(1);
            world.until("it has heard", || script.count("heard") == 1).await;
            worker.kill().await;
        } else {
            worker.stop().await;
            assert_eq!(world.rows()[0].owner, None, "the lease was given back");
        }
        assert_eq!((script.count("lease_lost"), script.count("heard")), (1, heard));
        let dropped = |event: &Event| match event {
            Event::Shard(ShardEvent::CallFailed { call, error, .. }) => {
                *call == "lease_lost" && error.contains("5000 ms")
            }
            _ => false,
        };
        assert_eq!(world.told(dropped), !lost, "what was dropped is told");
    }
}

/// Another worker takes the row, as if this one's heart had stopped.
async fn steal(world: &World) {
    let row = world.rows().remove(0);
    let hold = row.hold().unwrap();
    let write = anabranch_model::lease::Write::lease(
        &hold.key,
        anabranch_model::lease::LeaseChange::Take { taker: "thief-1".into(), term: hold.term },
        anabranch_model::lease::Nonce(7),
    );
    assert!(world.leases.write(&write).await.unwrap().is_done());
}
