//! What processors checkpoint: KCL's rules, in two phases too.

use super::script::{staged, worker};
use crate::world::pause;
use anabranch::consumer::CheckpointError;
use anabranch_model::position::Position;
use std::sync::atomic::Ordering;

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
    assert_eq!(world.rows()[0].checkpoint, last);

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
    // The one in its place does, and has to be given everything for it.
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
