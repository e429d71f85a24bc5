//! Checkpoints of processors: KCL's rules, in two phases too.

use super::script::{ProcessorScript, processors, staged, worker};
use crate::outage::{CutOff, CutOffStore, consumer};
use crate::world::{ConsumerFixture, RunningWorker, pause};
use anabranch::consumer::CheckpointError;
use anabranch::event::{Event, ShardEvent};
use anabranch_model::position::Position;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn only_the_processor_moves_the_checkpoint() {
    let (world, script) = staged(|script| script.lazy.store(true, Ordering::SeqCst));
    let first = worker(&world, &script, "first", 1);
    world.until_all_seen().await;
    pause(10_000).await;
    assert_eq!(world.rows()[0].checkpoint, Position::TrimHorizon);
    let checkpointer = script.checkpointer();
    checkpointer.checkpoint().await.unwrap();
    let last = checkpointer.last();
    assert_eq!(world.rows()[0].checkpoint, last);

    // Not before the last one, and not past the records handed out; the same again has no effect.
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
    assert_eq!(world.rows()[0].checkpoint, last);

    // Checkpointed records are not delivered again, and all others are.
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
async fn a_processor_that_was_replaced_checkpoints_nothing_for_the_one_in_its_place() {
    let (world, script) = staged(|script| script.lazy.store(true, Ordering::SeqCst));
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
    assert_eq!(world.rows()[0].checkpoint, Position::TrimHorizon);
    // The successor's checkpoint is stored, which requires that it gets everything again.
    assert_eq!(world.oracle.duplicates(), 10);
    let new = script.checkpointer();
    new.checkpoint().await.unwrap();
    assert_eq!(world.rows()[0].checkpoint, new.last());
    worker.stop().await;
    world.oracle.check();
}

#[tokio::test(start_paused = true)]
async fn what_was_prepared_is_shown_to_the_next_owner_until_a_checkpoint_is_made() {
    let (world, script) = staged(|script| script.lazy.store(true, Ordering::SeqCst));
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
    let row = world.rows().remove(0);
    assert_eq!((row.checkpoint.lowest(), row.pending), (prepared.position(), None));
    second.stop().await;
}

/// Returns a worker that has checkpointed the second of ten records and given up the checkpoint of
/// the eighth, which was stored. Also returns the positions of all records.
async fn given_up() -> (ConsumerFixture, Arc<ProcessorScript>, RunningWorker, Vec<Position>) {
    let (world, script) = staged(|script| script.lazy.store(true, Ordering::SeqCst));
    let off = Arc::new(AtomicBool::new(false));
    let cut =
        CutOffStore { store: world.leases.clone(), off: Arc::clone(&off), what: CutOff::Answers };
    let worker = RunningWorker::start(consumer(&world, cut).processors(processors(&script, "one")));
    world.until_all_seen().await;
    let at = script.positions.lock().unwrap().clone();
    let checkpointer = script.checkpointer();
    checkpointer.checkpoint_at(at[1]).await.unwrap();
    off.store(true, Ordering::Relaxed);
    let patience = Duration::from_millis(100);
    tokio::time::timeout(patience, checkpointer.checkpoint_at(at[7])).await.unwrap_err();
    off.store(false, Ordering::Relaxed);
    assert_eq!((world.rows()[0].checkpoint.lowest(), checkpointer.last()), (at[7], at[1]));
    (world, script, worker, at)
}

#[tokio::test(start_paused = true)]
async fn after_a_checkpoint_that_was_given_up_and_landed_those_before_it_are_there_already() {
    let (world, script, worker, at) = given_up().await;
    let checkpointer = script.checkpointer();
    let range = async |asked: Position, last: Position| {
        let said = checkpointer.checkpoint_at(asked).await.unwrap_err().to_string();
        assert!(said.contains(&format!("{last}, and")), "{said}");
    };
    range(at[0], at[1]).await;
    for (asked, row) in [(at[3], at[7]), (at[5], at[7]), (at[7], at[7]), (at[8], at[8])] {
        checkpointer.checkpoint_at(asked).await.unwrap();
        assert_eq!((world.rows()[0].checkpoint.lowest(), checkpointer.last()), (row, asked));
        range(at[2], asked).await;
    }
    worker.stop().await;

    let (world, script, worker, at) = given_up().await;
    let prepare = async |to| script.checkpointer().prepare(Some(to), "half".into()).await.unwrap();
    assert_eq!(prepare(at[4]).await.position(), at[4]);
    let prepared = prepare(at[9]).await;
    let row = world.rows().remove(0);
    assert_eq!((row.checkpoint.lowest(), row.pending.unwrap().position), (at[7], at[9]));
    prepared.checkpoint().await.unwrap();
    assert_eq!(world.rows()[0].checkpoint, at[9]);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_starts_over_begins_at_what_the_row_is_known_to_hold() {
    for known in [true, false] {
        let (world, script, worker, at) = given_up().await;
        if known {
            script.checkpointer().checkpoint_at(at[3]).await.unwrap();
        }
        script.lazy.store(false, Ordering::SeqCst);
        script.broken.store(1, Ordering::SeqCst);
        world.put_round(10);
        world.until_all_seen().await;
        let from = if known { 7 } else { 1 };
        assert_eq!(script.starts.lock().unwrap()[1].at, at[from], "known: {known}");
        worker.stop().await;
        world.oracle.check();
        assert_eq!(world.oracle.duplicates(), 9 - from);
        assert_eq!(script.count("initialize"), 2, "each checkpoint of the new one passed");
        let failed =
            |event: &Event| matches!(event, Event::Shard(ShardEvent::HandlerFailed { .. }));
        assert!(!world.told(failed), "known: {known}");
    }
}
