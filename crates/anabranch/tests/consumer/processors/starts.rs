//! Starts and restarts of processors.

use super::script::{ProcessorScript, processors, staged, worker};
use crate::world::{ConsumerFixture, RunningWorker, pause};
use anabranch::event::{Event, LeaseEvent, ShardEvent};
use anabranch::lease::MemoryStore;
use anabranch_model::lease::Layout;
use anabranch_model::position::{Position, StartPosition};
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[tokio::test(start_paused = true)]
async fn a_processor_that_can_not_start_leaves_its_shard_for_another_try() {
    let (world, script) = staged(|script| script.bad_starts.store(2, Ordering::SeqCst));
    let worker = worker(&world, &script, "one", 1);
    world.until_all_seen().await;
    worker.stop().await;
    let calls = script.calls();
    assert_eq!(calls[..4], ["0 initialize", "0 initialize", "0 initialize", "0 process 10"]);
    assert_eq!(script.count("lease_lost"), 1, "only of the one that had started");
    let named = |event: &Event| {
        matches!(event, Event::Shard(ShardEvent::CallbackFailed { call: "initialize", error, .. })
            if error == "bad start")
    };
    assert!(world.told(named));
}

#[tokio::test(start_paused = true)]
async fn a_processor_that_can_not_go_on_is_replaced_at_its_last_checkpoint() {
    let (world, script) = staged(|_| ());
    let worker = worker(&world, &script, "one", 1);
    world.until_all_seen().await;
    let last = script.checkpointer().last();
    // It has seen these without a checkpoint, so another one must see them again.
    script.lazy.store(true, Ordering::SeqCst);
    world.put_round(10);
    world.until_all_seen().await;
    // The batch and two starts after it.
    script.broken.store(3, Ordering::SeqCst);
    world.put_round(10);
    world.until_all_seen().await;
    assert_eq!(world.oracle.duplicates(), 10, "what was not checkpointed came again");
    let starts: Vec<_> = script.starts.lock().unwrap().iter().map(|start| start.at).collect();
    assert_eq!(starts, [Position::TrimHorizon, last, last, last]);

    // At the end of the shard too: then the end is stored and the children are read.
    script.lazy.store(false, Ordering::SeqCst);
    script.broken.store(1, Ordering::SeqCst);
    world.split(0);
    world.put_round(10);
    world.until_all_seen().await;
    assert!(world.rows()[0].is_ended());
    worker.stop().await;
    world.oracle.check();
    assert_eq!(script.count("0 lease_lost"), 0, "one that is replaced is told nothing");
    let is_take = |event: &&Event| matches!(event, Event::Lease(LeaseEvent::LeaseTaken { .. }));
    let takes = world.events.lock().unwrap().iter().filter(is_take).count();
    assert_eq!(takes, 3, "the lease stayed where it was");
}

#[tokio::test(start_paused = true)]
async fn what_comes_while_a_start_at_latest_fails_is_not_skipped() {
    let (world, script) = at_latest().await;
    // The lease is released after each of these, and taken again after a pause.
    script.bad_starts.store(3, Ordering::SeqCst);
    let worker = latest_worker(&world, &script);
    for start in 1..4 {
        world.until("it starts", || script.count("initialize") >= start).await;
        world.put_round(10);
        pause(500).await;
    }
    world.until_all_seen().await;
    assert_eq!(script.count("initialize"), 4);
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_came_since_a_start_at_latest_comes_again_to_a_processor_that_starts_over() {
    let (world, script) = at_latest().await;
    let worker = latest_worker(&world, &script);
    world.until("it starts", || script.count("initialize") == 1).await;
    pause(5_000).await;
    // The batch and two starts after it.
    script.broken.store(3, Ordering::SeqCst);
    world.put_round(10);
    world.until_all_seen().await;
    let starts: Vec<_> = script.starts.lock().unwrap().iter().map(|start| start.at).collect();
    assert_eq!(starts, [Position::Latest; 4], "nothing was checkpointed before");
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_came_since_a_start_at_latest_comes_again_after_a_checkpoint_was_only_prepared() {
    let (world, script) = at_latest().await;
    script.lazy.store(true, Ordering::SeqCst);
    let first = latest_worker(&world, &script);
    world.until("it starts", || script.count("initialize") == 1).await;
    pause(5_000).await;
    world.put_round(10);
    world.until_all_seen().await;
    let prepared = script.checkpointer().prepare(None, "half done".into()).await.unwrap();
    first.kill().await;
    pause(60_000).await;
    let second = latest_worker(&world, &script);
    world.until("they come again", || world.oracle.duplicates() == 10).await;
    let starts = script.starts.lock().unwrap().clone();
    let pending = starts[1].pending.as_ref().map(|pending| pending.position);
    assert_eq!(pending, Some(prepared.position()));
    second.stop().await;
}

/// Returns a stream with an old record, in the only layout whose rows are created at LATEST.
async fn at_latest() -> (ConsumerFixture, Arc<ProcessorScript>) {
    let mut world = ConsumerFixture::ticking(1);
    world.leases = MemoryStore::with_layout(Layout::Kcl);
    world.put_data("old", b"0");
    pause(5_000).await;
    let script = ProcessorScript::of(&world);
    (world, script)
}

fn latest_worker(world: &ConsumerFixture, script: &Arc<ProcessorScript>) -> RunningWorker {
    let consumer = world.consumer(1).starting_at(StartPosition::Latest);
    RunningWorker::start(consumer.processors(processors(script, "one")))
}
