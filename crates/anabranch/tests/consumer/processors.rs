//! Processors: KCL's five callbacks and the rules of its checkpointer.

use crate::oracle::Oracle;
use crate::world::{Running, STREAM, World, pause};
use anabranch::consumer::{
    CheckpointError, Checkpointer, HandlerError, ProcessorBatch, Processors, ShardProcessor,
    ShardStart, StartOver,
};
use anabranch::event::{Event, LeaseEvent, ShardEvent};
use anabranch::lease::{LeaseStore as _, MemoryStore};
use anabranch_model::lease::{Layout, Lease, LeaseKey};
use anabranch_model::position::{Position, StartPosition};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What the processors of a test do, and what they were told.
#[derive(Default)]
struct Script {
    /// Who notes the records.
    oracle: Oracle,
    /// Every call, in order: the shard's last digit and the call.
    calls: Mutex<Vec<String>>,
    /// Every start.
    starts: Mutex<Vec<ShardStart>>,
    /// The last checkpointer.
    checkpointer: Mutex<Option<Checkpointer>>,
    /// How many calls of `initialize` fail.
    bad_starts: AtomicUsize,
    /// How many calls of `process_records` fail.
    bad_batches: AtomicUsize,
    /// How many calls of any kind can't go on.
    broken: AtomicUsize,
    /// Nothing is checkpointed after a batch.
    lazy: AtomicBool,
    /// Nothing is checkpointed at the end of a shard.
    forgetful: AtomicBool,
    /// `process_records` never returns.
    hangs: AtomicBool,
    /// How long `lease_lost` takes, in milliseconds.
    loss_ms: AtomicU64,
}

struct Scripted {
    script: Arc<Script>,
    shard: Arc<LeaseKey>,
    by: &'static str,
}

impl Script {
    fn of(world: &World) -> Arc<Self> {
        Arc::new(Self { oracle: world.oracle.clone(), ..Self::default() })
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    fn count(&self, call: &str) -> usize {
        self.calls().iter().filter(|it| it.ends_with(call)).count()
    }

    fn checkpointer(&self) -> Checkpointer {
        self.checkpointer.lock().unwrap().clone().unwrap()
    }
}

impl Scripted {
    fn note(&self, call: &str) {
        let digit = self.shard.shard.as_str().chars().last().unwrap();
        self.script.calls.lock().unwrap().push(format!("{digit} {call}"));
    }
}

/// Whether this call is one of those that fail.
fn strikes(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl ShardProcessor for Scripted {
    async fn initialize(&mut self, start: ShardStart) -> Result<(), HandlerError> {
        self.note("initialize");
        self.script.starts.lock().unwrap().push(start);
        if strikes(&self.script.broken) {
            return Err(StartOver::because("broken").into());
        }
        if strikes(&self.script.bad_starts) { Err("bad start".into()) } else { Ok(()) }
    }

    async fn process_records(
        &mut self,
        batch: ProcessorBatch,
        checkpointer: &Checkpointer,
    ) -> Result<(), HandlerError> {
        *self.script.checkpointer.lock().unwrap() = Some(checkpointer.clone());
        self.note(&format!("process {}", batch.records.len()));
        if self.script.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if strikes(&self.script.broken) {
            return Err(StartOver::because("broken").into());
        }
        if strikes(&self.script.bad_batches) {
            return Err("bad batch".into());
        }
        for record in &batch.records {
            let key = record.partition_key.as_str();
            self.script.oracle.delivered(key, &record.data, self.by);
        }
        if !self.script.lazy.load(Ordering::SeqCst) {
            checkpointer.checkpoint().await?;
        }
        Ok(())
    }

    async fn lease_lost(&mut self) {
        self.note("lease_lost");
        pause(self.script.loss_ms.load(Ordering::SeqCst)).await;
        self.note("heard");
    }

    async fn shard_ended(&mut self, checkpointer: &Checkpointer) -> Result<(), HandlerError> {
        self.note("shard_ended");
        if strikes(&self.script.broken) {
            return Err(StartOver::because("broken").into());
        }
        if !self.script.forgetful.load(Ordering::SeqCst) {
            checkpointer.checkpoint().await?;
        }
        Ok(())
    }

    async fn shutdown_requested(
        &mut self,
        checkpointer: &Checkpointer,
    ) -> Result<(), HandlerError> {
        self.note("shutdown_requested");
        checkpointer.checkpoint().await?;
        Ok(())
    }
}

fn processors(
    script: &Arc<Script>,
    by: &'static str,
) -> impl Fn(&Arc<LeaseKey>) -> Scripted + use<> {
    let script = Arc::clone(script);
    move |shard| Scripted { script: Arc::clone(&script), shard: Arc::clone(shard), by }
}

fn worker(world: &World, script: &Arc<Script>, by: &'static str, seed: u64) -> Running {
    Running::start(world.consumer(seed).processors(processors(script, by)))
}

fn rows(world: &World) -> Vec<Lease> {
    world.leases.snapshot().leases(&STREAM.into()).cloned().collect()
}

#[tokio::test(start_paused = true)]
async fn processors_keep_order_through_reshards_stops_and_crashes() {
    let world = World::new(2);
    let script = Script::of(&world);
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
    let ended = rows(&world).iter().filter(|row| row.is_ended()).count();
    assert_eq!(ended, 4, "two shards were split and two merged");
    assert!(world.oracle.given_to("second") > 0 && world.oracle.given_to("third") > 0);
}

#[tokio::test(start_paused = true)]
async fn only_the_processor_moves_the_checkpoint() {
    let world = World::new(1);
    let script = Script::of(&world);
    script.lazy.store(true, Ordering::SeqCst);
    world.put_round(10);
    let first = worker(&world, &script, "first", 1);
    world.until_all_seen().await;
    pause(10_000).await;
    assert_eq!(rows(&world)[0].checkpoint, Position::TrimHorizon);
    let checkpointer = script.checkpointer();
    checkpointer.checkpoint().await.unwrap();
    let last = checkpointer.last();
    assert_eq!(rows(&world)[0].checkpoint, last);

    // Not before the last one, not past what was given; the same again is nothing.
    let Position::At { sequence, sub } = last else { panic!("{last}") };
    checkpointer.checkpoint_at(last).await.unwrap();
    for wrong in
        [Position::TrimHorizon, Position::At { sequence, sub: sub + 1 }, Position::ShardEnd]
    {
        let error = checkpointer.checkpoint_at(wrong).await.unwrap_err();
        assert_eq!(error.java_name(), "IllegalArgumentException");
        let said = error.to_string();
        assert!(said.contains(&last.to_string()) && said.contains(&wrong.to_string()), "{said}");
    }
    assert_eq!(rows(&world)[0].checkpoint, last);

    // What was checkpointed does not come again, and what was not does.
    world.put_round(10);
    world.until_all_seen().await;
    first.kill().await;
    let second = worker(&world, &script, "second", 2);
    world.until("the rest came again", || world.oracle.given_to("second") == 10).await;
    let late = checkpointer.checkpoint().await.unwrap_err();
    assert_eq!(late.java_name(), "ShutdownException");
    assert!(matches!(late, CheckpointError::Shutdown { .. }));
    second.stop().await;
    world.oracle.check();
    assert_eq!(script.starts.lock().unwrap()[1].at, last);
}

#[tokio::test(start_paused = true)]
async fn records_whose_call_failed_come_again() {
    let world = World::new(1);
    let script = Script::of(&world);
    script.bad_batches.store(3, Ordering::SeqCst);
    world.put_round(10);
    let worker = worker(&world, &script, "one", 1);
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(script.count("process 10"), 4, "{:?}", script.calls());
}

#[tokio::test(start_paused = true)]
async fn a_processor_that_can_not_go_on_is_replaced_at_its_last_checkpoint() {
    let world = World::new(1);
    let script = Script::of(&world);
    world.put_round(10);
    let worker = worker(&world, &script, "one", 1);
    world.until_all_seen().await;
    let last = script.checkpointer().last();
    // These it has seen and not checkpointed: another one has to see them again.
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

    // At the end of the shard too, and then the end is written and the children are read.
    script.lazy.store(false, Ordering::SeqCst);
    script.broken.store(1, Ordering::SeqCst);
    world.split(0);
    world.put_round(10);
    world.until_all_seen().await;
    assert!(rows(&world)[0].is_ended());
    worker.stop().await;
    world.oracle.check();
    assert_eq!(script.count("0 lease_lost"), 0, "one that is replaced is told nothing");
    let is_take = |event: &&Event| matches!(event, Event::Lease(LeaseEvent::Taken { .. }));
    let takes = world.events.lock().unwrap().iter().filter(is_take).count();
    assert_eq!(takes, 3, "the lease stayed where it was");
}

#[tokio::test(start_paused = true)]
async fn a_processor_that_was_replaced_checkpoints_nothing_for_the_one_in_its_place() {
    let world = World::new(1);
    let script = Script::of(&world);
    script.lazy.store(true, Ordering::SeqCst);
    world.put_round(10);
    let worker = worker(&world, &script, "one", 1);
    world.until_all_seen().await;
    let old = script.checkpointer();
    let prepared = old.prepare(None, "half done".into()).await.unwrap();
    script.broken.store(1, Ordering::SeqCst);
    world.put_round(10);
    world.until_all_seen().await;
    assert_eq!(script.count("initialize"), 2);
    let late = [
        old.checkpoint().await,
        old.checkpoint_at(old.last()).await,
        prepared.checkpoint().await,
        old.prepare(None, "late".into()).await.map(drop),
    ];
    for late in late {
        assert!(matches!(late, Err(CheckpointError::Shutdown { .. })), "{late:?}");
    }
    assert_eq!(rows(&world)[0].checkpoint, Position::TrimHorizon);
    // The one in its place does, and has to be given everything for it.
    assert_eq!(world.oracle.duplicates(), 10);
    let new = script.checkpointer();
    new.checkpoint().await.unwrap();
    assert_eq!(rows(&world)[0].checkpoint, new.last());
    worker.stop().await;
    world.oracle.check();
}

#[tokio::test(start_paused = true)]
async fn what_comes_while_a_start_at_latest_fails_is_not_skipped() {
    let mut world = World::ticking(1);
    // The only layout whose rows keep LATEST.
    world.leases = MemoryStore::new(Layout::Kcl);
    world.put_data("old", b"0");
    pause(5_000).await;
    let script = Script::of(&world);
    // The lease is given back after each of these, and taken again after a pause.
    script.bad_starts.store(3, Ordering::SeqCst);
    let consumer = world.consumer(1).starting_at(StartPosition::Latest);
    let worker = Running::start(consumer.processors(processors(&script, "one")));
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
    let mut world = World::ticking(1);
    // The only layout whose rows keep LATEST.
    world.leases = MemoryStore::new(Layout::Kcl);
    world.put_data("old", b"0");
    pause(5_000).await;
    let script = Script::of(&world);
    let consumer = world.consumer(1).starting_at(StartPosition::Latest);
    let worker = Running::start(consumer.processors(processors(&script, "one")));
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
async fn a_stop_asks_for_a_last_checkpoint_and_repeats_nothing() {
    let world = World::new(1);
    let script = Script::of(&world);
    script.lazy.store(true, Ordering::SeqCst);
    world.put_round(10);
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
    let world = World::new(1);
    let script = Script::of(&world);
    script.hangs.store(true, Ordering::SeqCst);
    world.put_round(10);
    let first = worker(&world, &script, "first", 1);
    world.until("it hangs", || script.count("process 10") == 1).await;
    first.stop().await;
    assert_eq!(script.calls(), ["0 initialize", "0 process 10", "0 lease_lost", "0 heard"]);
    assert_eq!(rows(&world)[0].owner, None, "the lease was given back");
}

#[tokio::test(start_paused = true)]
async fn children_wait_for_a_processor_that_checkpoints_the_end() {
    let world = World::new(1);
    let script = Script::of(&world);
    script.forgetful.store(true, Ordering::SeqCst);
    world.put_round(10);
    world.split(0);
    world.put_round(10);
    let worker = worker(&world, &script, "one", 1);
    world.until("the end is told again and again", || script.count("shard_ended") > 3).await;
    assert_eq!(world.oracle.seen(), 10, "the children wait");
    assert!(!rows(&world)[0].is_ended());
    let named = |event: &Event| {
        matches!(event, Event::Shard(ShardEvent::CallFailed { call: "shard_ended", error, .. })
            if error.contains("checkpoint"))
    };
    assert!(world.told(named), "it is said by name");
    script.forgetful.store(false, Ordering::SeqCst);
    world.until_all_seen().await;
    assert!(rows(&world)[0].is_ended());
    worker.stop().await;
    world.oracle.check();
    assert_eq!(script.count("0 lease_lost"), 0, "an ended shard is not lost");
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_processor_that_can_not_start_leaves_its_shard_for_another_try() {
    let world = World::new(1);
    let script = Script::of(&world);
    script.bad_starts.store(2, Ordering::SeqCst);
    world.put_round(10);
    let worker = worker(&world, &script, "one", 1);
    world.until_all_seen().await;
    worker.stop().await;
    let calls = script.calls();
    assert_eq!(calls[..4], ["0 initialize", "0 initialize", "0 initialize", "0 process 10"]);
    assert_eq!(script.count("lease_lost"), 1, "only of the one that had started");
    let named = |event: &Event| {
        matches!(event, Event::Shard(ShardEvent::CallFailed { call: "initialize", error, .. })
            if error == "bad start")
    };
    assert!(world.told(named));
}

#[tokio::test(start_paused = true)]
async fn what_was_prepared_is_shown_to_the_next_owner_until_a_checkpoint_is_made() {
    let world = World::new(1);
    let script = Script::of(&world);
    script.lazy.store(true, Ordering::SeqCst);
    world.put_round(10);
    let first = worker(&world, &script, "first", 1);
    world.until_all_seen().await;
    let prepared = script.checkpointer().prepare(None, "half done".into()).await.unwrap();
    first.kill().await;

    let second = worker(&world, &script, "second", 2);
    world.until("the next one starts", || script.starts.lock().unwrap().len() == 2).await;
    let start = script.starts.lock().unwrap()[1].clone();
    let pending = start.pending.unwrap();
    assert_eq!((start.at, pending.position), (Position::TrimHorizon, prepared.position()));
    assert_eq!(pending.state.as_deref(), Some(&b"half done"[..]));
    world.until("it has them too", || world.oracle.given_to("second") == 10).await;
    let prepared = script.checkpointer().prepare(None, "again".into()).await.unwrap();
    prepared.checkpoint().await.unwrap();
    let row = rows(&world).remove(0);
    assert_eq!((row.checkpoint.lowest(), row.pending), (prepared.position(), None));
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_told_once_and_nothing_else_is() {
    let world = World::new(1);
    let script = Script::of(&world);
    world.put_round(10);
    let worker = worker(&world, &script, "one", 1);
    world.until_all_seen().await;
    steal(&world).await;
    world.put_round(1);
    world.until("it is told", || script.count("lease_lost") == 1).await;
    assert_eq!(script.count("shutdown_requested"), 0);
    worker.kill().await;
}

/// Another worker takes the row, as if this one's heart had stopped.
async fn steal(world: &World) {
    let row = rows(world).remove(0);
    let hold = row.hold().unwrap();
    let write = anabranch_model::lease::Write::lease(
        &hold.key,
        anabranch_model::lease::LeaseChange::Take { taker: "thief-1".into(), term: hold.term },
        anabranch_model::lease::Nonce(7),
    );
    assert!(world.leases.write(&write).await.unwrap().is_done());
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_leaves_time_to_hear_of_it_and_one_that_is_given_back_little() {
    for (lost, heard) in [(true, 1), (false, 0)] {
        let world = World::new(1);
        let script = Script::of(&world);
        script.loss_ms.store(20_000, Ordering::SeqCst);
        world.put_round(10);
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
            assert_eq!(rows(&world)[0].owner, None, "the lease was given back");
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

#[tokio::test(start_paused = true)]
async fn reads_without_records_are_told_to_those_who_ask() {
    let world = World::new(1);
    let script = Script::of(&world);
    let shape = Processors::new(processors(&script, "one")).with_empty_calls().with_most(3);
    let worker = Running::start(world.consumer(1).with_handler(shape));
    world.until("it is told", || script.count("process 0") > 2).await;
    world.put_round(7);
    world.until_all_seen().await;
    worker.stop().await;
    assert_eq!((script.count("process 3"), script.count("process 1")), (2, 1));
    world.oracle.check();
}

#[tokio::test(start_paused = true)]
async fn a_processor_takes_no_lanes() {
    let world = World::new(1);
    let script = Script::of(&world);
    let consumer = world.consumer(1).processors(processors(&script, "one")).with_concurrency(4);
    let refused = Running::start(consumer).stopped().await.unwrap_err().to_string();
    assert!(refused.contains("concurrency is 4"), "{refused}");
}
