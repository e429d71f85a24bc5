//! The end of a shard: true and false reports of it.

use crate::world::{ConsumerFixture, RunningWorker, STREAM, pause};
use anabranch::clock::{Clock, Rng};
use anabranch::consumer::{FetchMode, RunError};
use anabranch::event::{Event, ShardEvent};
use anabranch::stream::LocalKinesis;
use anabranch::tail::Tail;
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::{Operation, StreamTarget, delete_stream};
use anabranch_model::position::{Position, StartPosition};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Reader of the stream.
#[derive(Clone, Copy, Debug)]
enum ReadVia {
    Consumer(FetchMode),
    Tail,
}

const ALL: [ReadVia; 3] =
    [ReadVia::Consumer(FetchMode::Poll), ReadVia::Consumer(FetchMode::FanOut), ReadVia::Tail];

impl ReadVia {
    fn operation(self) -> Operation {
        match self {
            Self::Consumer(FetchMode::FanOut) => Operation::SubscribeToShard,
            _ => Operation::GetRecords,
        }
    }
}

/// Reads a stream of one shard while `story` runs, until every record has arrived once and in the
/// order of its key.
async fn check(
    by: ReadVia,
    before: impl Fn(&ConsumerFixture),
    story: impl AsyncFn(&ConsumerFixture),
) {
    let world = Arc::new(ConsumerFixture::ticking(1));
    before(&world);
    let mut tail = JoinSet::new();
    let worker = match by {
        ReadVia::Consumer(fetch) => {
            let consumer = world.consumer(1).with_settings(|settings| {
                settings.fetch = fetch;
                // Only the lists that the read itself requests.
                settings.audit_interval = Duration::from_hours(24);
            });
            Some(RunningWorker::start(consumer.each(world.note("worker"))))
        }
        ReadVia::Tail => {
            let reads = Arc::clone(&world);
            tail.spawn(async move { follow(&reads).await });
            None
        }
    };
    world.put_round(20);
    world.until_all_seen().await;
    story(&world).await;
    world.until_all_seen().await;
    if let Some(worker) = worker {
        worker.stop().await;
    }
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0, "{by:?}");
}

async fn follow(world: &ConsumerFixture) {
    let kinesis = LocalKinesis::new(Arc::clone(&world.engine));
    let mut tail = Tail::new(STREAM)
        .with_kinesis(kinesis)
        .since(StartPosition::TrimHorizon)
        .with_clock(Clock::of_runtime(), Rng::seeded(5));
    while let Some(record) = tail.next().await {
        let record = record.unwrap();
        world.oracle.delivered(record.partition_key.as_str(), &record.data, "tail");
    }
}

#[tokio::test(start_paused = true)]
async fn an_open_shard_that_a_read_says_has_ended_is_read_on() {
    for by in ALL {
        let ends =
            |world: &ConsumerFixture| world.strike(by.operation(), FaultEffect::FalseEnd, 0, 3);
        check(by, ends, async |world| {
            world.put_round(20);
            world.until_all_seen().await;
            let table = world.leases.snapshot();
            assert!(table.leases(&STREAM.into()).all(|row| !row.is_ended()), "{by:?}");
            if matches!(by, ReadVia::Consumer(_)) {
                let doubted = |event: &Event| {
                    matches!(event, Event::Shard(ShardEvent::FetchFailed { error, .. })
                        if error.contains("the shard has ended, but the shard list"))
                };
                assert!(world.told(doubted), "{by:?}");
            }
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn children_that_no_read_names_come_from_the_list() {
    for by in ALL {
        let ends = |world: &ConsumerFixture| {
            world.strike(by.operation(), FaultEffect::FalseEnd, 0, u64::MAX);
        };
        check(by, ends, async |world| {
            world.put_round(20);
            world.split(0);
            world.put_round(20);
            pause(60_000).await;
            world.merge(0);
            world.put_round(20);
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_comes_between_a_false_end_and_the_true_one_is_read() {
    for by in ALL {
        check(
            by,
            |_| (),
            async |world| {
                // The list that is requested after the false end is answered after the true one.
                world.strike(Operation::ListShards, FaultEffect::Delay { ms: 20_000 }, 0, 1);
                world.strike(by.operation(), FaultEffect::FalseEnd, 0, 1);
                // A subscription is requested again once it is over.
                let struck = || world.engine.faults().list().iter().all(|rule| rule.struck == 1);
                world.until("the false end is doubted", struck).await;
                world.put_round(20);
                world.split(0);
                world.put_round(20);
            },
        )
        .await;
    }
}

/// A short false report of a deleted stream causes no duplicates.
#[tokio::test(start_paused = true)]
async fn what_is_done_is_written_down_when_the_service_says_that_the_stream_is_gone() {
    let world = ConsumerFixture::new(2);
    (0..5).for_each(|_| world.put_round(10));
    let consumer = world
        .consumer(1)
        .with_settings(|settings| settings.checkpoint_interval = Duration::from_mins(10));
    let worker = RunningWorker::start(consumer.each(world.note("one")));
    world.until_all_seen().await;
    let stream = StreamTarget::named(STREAM);
    let request = delete_stream::Request { stream, ..Default::default() };
    world.engine.delete_stream(&request).unwrap();
    let ended = worker.stopped().await;
    assert!(matches!(ended, Err(RunError::StreamDeleted(_))), "{ended:?}");
    for row in world.rows() {
        let at = row.checkpoint.lowest();
        assert!(matches!(at, Position::At { .. }), "{} stands at {at}", row.key);
    }
}

#[tokio::test(start_paused = true)]
async fn a_torn_list_ends_no_shard() {
    for by in ALL {
        let ends = |world: &ConsumerFixture| {
            world.strike(by.operation(), FaultEffect::FalseEnd, 0, u64::MAX);
        };
        check(by, ends, async |world| {
            world.split(0);
            // One of two children is listed at first.
            world.strike(Operation::ListShards, FaultEffect::TearList, 0, 3);
            world.put_round(20);
        })
        .await;
    }
}
