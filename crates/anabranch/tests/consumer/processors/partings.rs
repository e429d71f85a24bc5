//! Processors leave their shard: at a stop, at its end, and when its lease is lost.

use super::script::{ProcessorScript, processors, staged, worker};
use crate::outage::{CutOff, CutOffStore, consumer};
use crate::world::{ConsumerFixture, RunningWorker, pause};
use anabranch::event::{Event, ShardEvent};
use anabranch::lease::LeaseStore as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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
        matches!(event, Event::Shard(ShardEvent::CallbackFailed { call: "shard_ended", error, .. })
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

/// Prepares a closed shard whose ten records are done but not checkpointed, and a worker that is
/// asked to stop in the middle of a `shard_ended` of `end_ms` milliseconds.
async fn stopped_at_the_end(
    end_ms: u64,
    tell: impl FnOnce(&ProcessorScript),
) -> (ConsumerFixture, Arc<ProcessorScript>) {
    let (world, script) = staged(|script| {
        script.lazy.store(true, Ordering::SeqCst);
        script.end_ms.store(end_ms, Ordering::SeqCst);
    });
    world.split(0);
    world.put_round(10);
    let first = worker(&world, &script, "first", 1);
    world.until("the end is told", || script.count("shard_ended") == 1).await;
    tell(&script);
    first.stop().await;
    (world, script)
}

/// Lets another worker continue, and asserts the number of duplicates.
async fn read_on(world: &ConsumerFixture, script: &Arc<ProcessorScript>, duplicates: usize) {
    let second = worker(world, script, "second", 2);
    world.until_all_seen().await;
    world.until("the end is written", || world.rows()[0].is_ended()).await;
    second.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), duplicates);
}

#[tokio::test(start_paused = true)]
async fn a_stop_leaves_the_end_of_a_shard_its_grace() {
    let (world, script) = stopped_at_the_end(15_000, |_| ()).await;
    assert_eq!(script.calls(), ["0 initialize", "0 process 10", "0 shard_ended", "0 ended"]);
    assert!(world.rows()[0].is_ended(), "its end was written within the grace");
    read_on(&world, &script, 0).await;
}

#[tokio::test(start_paused = true)]
async fn an_end_that_takes_longer_than_the_grace_is_dropped_and_told_elsewhere() {
    let (world, script) = stopped_at_the_end(3_600_000, |_| ()).await;
    let calls = ["0 initialize", "0 process 10", "0 shard_ended", "0 lease_lost", "0 heard"];
    assert_eq!(script.calls(), calls);
    assert!(world.rows()[0].owner.is_none() && !world.rows()[0].is_ended());
    let named = |event: &Event| {
        matches!(event, Event::Shard(ShardEvent::CallbackFailed { call: "shard_ended", error, .. })
            if error.contains("grace"))
    };
    assert!(world.told(named), "it is said by name");
    read_on(&world, &script, 10).await;
}

#[tokio::test(start_paused = true)]
async fn an_end_that_fails_in_a_stop_leaves_a_last_checkpoint_unless_it_can_not_go_on() {
    let forget = |script: &ProcessorScript| script.forgetful.store(true, Ordering::SeqCst);
    let (world, script) = stopped_at_the_end(5_000, forget).await;
    let calls = ["0 shard_ended", "0 ended", "0 shutdown_requested", "0 lease_lost", "0 heard"];
    assert_eq!(script.calls()[2..], calls);
    script.forgetful.store(false, Ordering::SeqCst);
    read_on(&world, &script, 0).await;

    let (world, script) =
        stopped_at_the_end(5_000, |script| script.broken.store(1, Ordering::SeqCst)).await;
    assert_eq!(script.count("shutdown_requested"), 0, "it has nothing to say of its records");
    assert_eq!(script.count("initialize"), 1, "the stop holds");
    read_on(&world, &script, 10).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_told_after_an_end_that_was_done_whether_it_is_written_in_time_or_not() {
    for in_time in [true, false] {
        let (world, script) = staged(|_| ());
        world.split(0);
        world.put_round(10);
        let off = Arc::new(AtomicBool::new(true));
        let what = CutOff::Ends;
        let cut = CutOffStore { store: world.leases.clone(), off: Arc::clone(&off), what };
        let first =
            RunningWorker::start(consumer(&world, cut).processors(processors(&script, "first")));
        world.until("it has done its end", || script.count("0 ended") == 1).await;
        first.ask_to_stop();
        pause(10_000).await;
        off.store(!in_time, Ordering::Relaxed);
        first.stopped().await.unwrap();
        let calls = ["0 initialize", "0 process 10", "0 shard_ended", "0 ended"];
        assert_eq!(script.calls(), calls, "in time: {in_time}");
        assert_eq!(world.rows()[0].is_ended(), in_time);
        assert_eq!(world.rows()[0].owner, None);
        read_on(&world, &script, 0).await;
    }
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
        let consumer = world
            .consumer(1)
            .with_settings(|settings| settings.lease_lost_timeout = Duration::from_secs(30));
        let worker = RunningWorker::start(consumer.processors(processors(&script, "one")));
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
            Event::Shard(ShardEvent::CallbackFailed { call, error, .. }) => {
                *call == "lease_lost" && error.contains("5000 ms")
            }
            _ => false,
        };
        assert_eq!(world.told(dropped), !lost, "what was dropped is told");
    }
}

/// Lets another worker take the row, as if this one's heartbeats had stopped.
async fn steal(world: &ConsumerFixture) {
    let row = world.rows().remove(0);
    let hold = row.token().unwrap();
    let write = anabranch_model::lease::Write::lease(
        &hold.key,
        anabranch_model::lease::LeaseChange::Take { taker: "thief-1".into(), term: hold.term },
        anabranch_model::lease::Nonce(7),
    );
    assert!(world.leases.write(&write).await.unwrap().is_done());
}
