//! Streams that are added while they are still being created: other calls do not wait for them.

use crate::world::{ConsumerFixture, RunningWorker, STREAM, pause};
use anabranch::event::{Event, LeaseEvent};
use anabranch_local::op::create_stream;
use anabranch_local::{Clock, Engine, EngineOptions};
use anabranch_model::position::StartPosition;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

fn create(world: &ConsumerFixture, name: &str) {
    let request = create_stream::Request {
        stream_name: Some(name.to_owned()),
        shard_count: Some(1),
        ..Default::default()
    };
    world.engine.create_stream(&request).unwrap();
}

/// Returns the answer, which must arrive while the stream is still being created.
async fn soon<T>(answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(10), answer).await.expect("it waits for the stream")
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_waited_for_keeps_nobody_from_removing_another_or_itself() {
    let mut world = ConsumerFixture::new(1);
    let clock = Clock::manual(1_700_000_000_000);
    let slow = EngineOptions { create_delay_ms: 60_000, ..EngineOptions::instant() };
    world.engine = Arc::new(Engine::new(slow, clock.clone()));
    create(&world, STREAM);
    clock.advance(60_000);
    create(&world, "cards");
    let mut consumer = world.consumer(1).each(world.note("one"));
    let control = consumer.control();
    let worker = RunningWorker::start(consumer);
    let add = || control.add("cards", StartPosition::TrimHorizon);
    let (removed, ()) = tokio::join!(add(), async {
        let awaited =
            |event: &Event| matches!(event, Event::Lease(LeaseEvent::StreamNotActive { .. }));
        world.until("it is waited for", || world.told(awaited)).await;
        let twice = soon(add()).await.unwrap_err();
        assert!(twice.to_string().contains("cards is already being read"), "{twice}");
        assert_eq!(soon(control.remove(STREAM)).await.unwrap(), [], "another one is removed");
        assert_eq!(soon(control.remove("cards")).await.unwrap(), [], "and itself");
    });
    let removed = removed.unwrap_err();
    assert!(removed.to_string().contains("cards was removed before"), "{removed}");

    let (added, ()) = tokio::join!(add(), async {
        pause(10_000).await;
        clock.advance(60_000);
    });
    added.unwrap();
    world.oracle.put("key");
    world.put_into("cards", "key", b"0");
    world.until_all_seen().await;
    worker.stop().await;
}
