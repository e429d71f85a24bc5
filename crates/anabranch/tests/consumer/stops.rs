//! Stops: in order, with handlers that are busy, stuck, or can't be stopped.

use crate::world::{Running, STREAM, World, pause};
use anabranch::consumer::{Delivery, HandlerError, RunError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[tokio::test(start_paused = true)]
async fn a_stop_lets_the_handler_end_its_call_and_repeats_nothing() {
    let world = World::new(2);
    (0..20).for_each(|_| world.put_round(10));
    let note = Arc::new(world.note("first"));
    let slow = Running::start(world.consumer(1).each(move |record: Delivery| {
        let note = Arc::clone(&note);
        async move {
            pause(300).await;
            note(record).await
        }
    }));
    world.until("some are delivered", || world.oracle.seen() >= 7).await;
    slow.stop().await;
    assert!(world.oracle.seen() < 200, "it was stopped in the middle");
    let worker = world.worker("second", 2);
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_shards_of_a_worker_that_stops_go_on_elsewhere_at_once() {
    let world = World::new(4);
    world.put_round(20);
    let first = world.worker("first", 1);
    world.until_all_seen().await;
    let second = world.worker("second", 2);
    pause(30_000).await;
    first.stop().await;
    world.put_round(20);
    let begun = tokio::time::Instant::now();
    world.until_all_seen().await;
    // Far below the lease time of ten seconds: the leases were given back.
    assert!(begun.elapsed().as_millis() < 2_500, "{:?}", begun.elapsed());
    second.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[test]
fn a_handler_that_blocks_its_thread_keeps_the_lease_and_fails_the_stop() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    let free = Arc::new(AtomicBool::new(false));
    runtime.block_on(async {
        let world = World::new(1);
        world.put_round(1);
        let (entered, go) = (Arc::new(AtomicBool::new(false)), Arc::clone(&free));
        let inside = Arc::clone(&entered);
        let consumer = world.consumer(1).each(move |_: Delivery| {
            inside.store(true, Ordering::SeqCst);
            while !go.load(Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            std::future::ready(Ok::<(), HandlerError>(()))
        });
        let worker = Running::start(consumer.with_settings(|settings| settings.grace_ms = 200));
        world.until("the handler runs", || entered.load(Ordering::SeqCst)).await;
        worker.ask_to_stop();
        let stopped = worker.stopped().await;
        free.store(true, Ordering::SeqCst);
        assert!(matches!(stopped, Err(RunError::Stuck { .. })), "{stopped:?}");
        let table = world.leases.snapshot();
        let owners: Vec<_> =
            table.leases(&STREAM.into()).map(|lease| lease.owner.clone()).collect();
        assert!(owners.iter().all(Option::is_some), "the lease is kept: {owners:?}");
    });
}

#[test]
fn a_stream_removed_under_a_handler_that_blocks_its_thread_is_given_back_when_it_returns() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    let free = Arc::new(AtomicBool::new(false));
    runtime.block_on(async {
        let world = World::new(1);
        world.put_round(1);
        let (calls, go) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&free));
        let called = Arc::clone(&calls);
        let consumer = world.consumer(1).each(move |_: Delivery| {
            called.fetch_add(1, Ordering::SeqCst);
            while !go.load(Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            std::future::ready(Ok::<(), HandlerError>(()))
        });
        let mut consumer = consumer.with_settings(|settings| settings.grace_ms = 200);
        let (health, control) = (consumer.health(), consumer.control());
        let worker = Running::start(consumer);
        world.until("the handler runs", || calls.load(Ordering::SeqCst) == 1).await;
        tokio::select! {
            biased;
            left = control.remove(STREAM) => assert_eq!(left.unwrap().len(), 1),
            () = world.until("it can't be stopped", || !health.is_live()) => {}
        }
        world.put_round(5);
        free.store(true, Ordering::SeqCst);
        let kept = || {
            let table = world.leases.snapshot();
            table.leases(&STREAM.into()).any(|lease| lease.owner.is_some())
        };
        let calls = || calls.load(Ordering::SeqCst);
        world.until("it is given back or read", || !kept() || calls() > 1).await;
        assert_eq!(calls(), 1, "a stream that was removed is read no more");
        worker.stop().await;
    });
}
