//! Every record is delivered once and in order, even across a restart.

use crate::memory::SlowStream;
use crate::world::{ConsumerFixture, RunningWorker, STREAM, pause};
use anabranch::clock::{Clock, Rng};
use anabranch::consumer::{Consumer, Delivery};
use anabranch::lease::MemoryStore;
use anabranch::stream::LocalKinesis;
use anabranch_model::lease::Layout;
use anabranch_model::position::StartPosition;
use std::sync::{Arc, Mutex};

#[tokio::test(start_paused = true)]
async fn records_come_in_order_and_not_again_after_a_stop() {
    let world = ConsumerFixture::new(4);
    (0..25).for_each(|_| world.put_round(20));
    let worker = world.worker("first", 1);
    world.until_all_seen().await;
    worker.stop().await;
    (0..5).for_each(|_| world.put_round(20));
    let worker = world.worker("second", 2);
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!((world.oracle.given_to("second"), world.oracle.duplicates()), (100, 0));
}

#[tokio::test(start_paused = true)]
async fn each_session_delivers_under_a_higher_term_of_its_lease() {
    let world = ConsumerFixture::new(1);
    let terms = Arc::new(Mutex::new(Vec::new()));
    for seed in 1..=3 {
        world.put_round(2);
        let (note, seen) = (world.note("one"), Arc::clone(&terms));
        let worker = RunningWorker::start(world.consumer(seed).each(move |delivery: Delivery| {
            seen.lock().unwrap().push(delivery.lease_term.expect("it is read under a lease"));
            note(delivery)
        }));
        world.until_all_seen().await;
        worker.stop().await;
    }
    let terms = terms.lock().unwrap();
    let [one, _, two, _, three, _] = terms[..] else { panic!("{terms:?}") };
    assert_eq!(terms[..], [one, one, two, two, three, three]);
    assert!(one < two && two < three, "{terms:?}");
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_too_slow_for_whole_replies_is_asked_for_fewer_records() {
    let world = ConsumerFixture::ticking(1);
    (0..20).for_each(|_| world.put_round(20));
    let remote = SlowStream::narrow(LocalKinesis::new(Arc::clone(&world.engine)), 3);
    let consumer = Consumer::new(STREAM, "mailer")
        .with_kinesis(remote)
        .with_leases(world.leases.clone())
        .with_clock(Clock::of_runtime(), Rng::seeded(1));
    let worker = RunningWorker::start(consumer.each(world.note("one")));
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_crash_repeats_at_most_what_was_done_since_the_last_checkpoint() {
    let world = ConsumerFixture::new(2);
    (0..20).for_each(|_| world.put_round(10));
    let worker = world.worker("first", 1);
    world.until_all_seen().await;
    // Two checkpoints later all of it is stored.
    pause(3_000).await;
    world.put_round(10);
    world.until_all_seen().await;
    worker.kill().await;
    world.put_round(10);
    let worker = world.worker("second", 2);
    world.until_all_seen().await;
    worker.stop().await;
    world.oracle.check();
    assert!(world.oracle.duplicates() <= 10, "{} came again", world.oracle.duplicates());
}

#[tokio::test(start_paused = true)]
async fn two_workers_share_the_shards_and_nothing_comes_twice() {
    let world = ConsumerFixture::new(8);
    world.put_round(100);
    let first = world.worker("first", 1);
    world.until_all_seen().await;
    let second = world.worker("second", 2);
    pause(30_000).await;
    for _ in 0..20 {
        world.put_round(100);
        pause(200).await;
    }
    world.until_all_seen().await;
    assert!(world.oracle.given_to("second") > 500, "{}", world.oracle.given_to("second"));
    first.stop().await;
    world.put_round(100);
    world.until_all_seen().await;
    second.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn latest_is_resolved_once_so_that_a_crash_before_the_first_record_loses_nothing() {
    for layout in [Layout::Native, Layout::Kcl] {
        let mut world = ConsumerFixture::ticking(2);
        world.leases = MemoryStore::with_layout(layout);
        world.put_data("key-0", b"before the application's time");
        // The service reports its time in seconds.
        pause(1_100).await;
        let latest = || world.consumer(1).starting_at(StartPosition::Latest);
        let first = RunningWorker::start(latest().each(world.note("first")));
        pause(5_000).await;
        first.kill().await;
        world.put_round(10);
        // The lease time passes while no worker reads.
        pause(60_000).await;
        let second = RunningWorker::start(latest().each(world.note("second")));
        world.until_all_seen().await;
        second.stop().await;
        world.oracle.check();
        assert_eq!(world.oracle.deliveries().len(), 10, "{layout:?}");
    }
}
