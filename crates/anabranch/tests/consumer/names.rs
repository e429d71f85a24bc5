//! A stream whose configuration changes from its name to its ARN is resumed at its checkpoints.

use crate::world::{ConsumerFixture, RunningWorker, STREAM, pause};
use anabranch::clock::{Clock, Rng};
use anabranch::consumer::{Consumer, Delivery, HandlerError};
use anabranch::stream::LocalKinesis;
use anabranch::stream::api::{
    FetchedRecords, ReadFrom, ShardFilter, ShardIterator, ShardList, StreamApi, StreamError,
    StreamSummary,
};
use anabranch_local::op::create_stream;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::position::StartPosition;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

const ARN: &str = "arn:aws:kinesis:us-east-1:000000000000:stream/orders";
/// A stream of the same name in another account.
const THEIRS: &str = "arn:aws:kinesis:us-east-1:111111111111:stream/orders";

#[tokio::test(start_paused = true)]
async fn a_change_from_name_to_arn_and_back_skips_nothing() {
    for (before, after) in [(STREAM, ARN), (ARN, STREAM)] {
        let world = ConsumerFixture::ticking(2);
        let worker = |name: &str| {
            let consumer = Consumer::new(name, "mailer")
                .starting_at(StartPosition::Latest)
                .with_kinesis(LocalKinesis::new(Arc::clone(&world.engine)))
                .with_leases(world.leases.clone())
                .with_clock(Clock::of_runtime(), Rng::seeded(1));
            RunningWorker::start(consumer.each(world.note("it")))
        };
        let first = worker(before);
        pause(5_000).await;
        world.put_round(10);
        world.until_all_seen().await;
        first.stop().await;
        world.put_round(10);
        pause(5_000).await;
        let second = worker(after);
        world.until_all_seen().await;
        second.stop().await;
        world.oracle.check();
        assert_eq!(world.oracle.duplicates(), 0, "{before}, then {after}");
    }
}

/// A service with a stream of the same name in another account.
struct TwoAccounts {
    local: LocalKinesis,
}

impl TwoAccounts {
    /// Returns the stream in the engine that represents one of either account.
    fn real(stream: &StreamName) -> StreamName {
        if stream.as_str() == THEIRS { "theirs".into() } else { stream.clone() }
    }
}

impl StreamApi for TwoAccounts {
    delegate!(local: consumers subscribe put_records put_record);

    async fn describe(&self, stream: &StreamName) -> Result<StreamSummary, StreamError> {
        let mut summary = self.local.describe(&Self::real(stream)).await?;
        if stream.as_str() == THEIRS {
            THEIRS.clone_into(&mut summary.arn);
        }
        Ok(summary)
    }

    async fn list_shards(
        &self,
        stream: &StreamName,
        filter: ShardFilter,
    ) -> Result<ShardList, StreamError> {
        self.local.list_shards(&Self::real(stream), filter).await
    }

    async fn iterator(
        &self,
        stream: &StreamName,
        shard: &ShardId,
        at: ReadFrom,
    ) -> Result<ShardIterator, StreamError> {
        self.local.iterator(&Self::real(stream), shard, at).await
    }

    async fn records(
        &self,
        stream: &StreamName,
        iterator: &ShardIterator,
        limit: u32,
    ) -> Result<FetchedRecords, StreamError> {
        self.local.records(&Self::real(stream), iterator, limit).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_the_same_name_in_another_account_is_another_one() {
    let world = ConsumerFixture::ticking(1);
    let request = create_stream::Request {
        stream_name: Some("theirs".to_owned()),
        shard_count: Some(1),
        ..Default::default()
    };
    world.engine.create_stream(&request).unwrap();
    world.put_into(STREAM, "own", b"x");
    world.put_into("theirs", "foreign", b"x");
    let seen = Arc::<Mutex<BTreeSet<(String, String)>>>::default();
    let note = Arc::clone(&seen);
    let consumer = Consumer::streams([STREAM, THEIRS], "mailer")
        .with_kinesis(TwoAccounts { local: LocalKinesis::new(Arc::clone(&world.engine)) })
        .with_leases(world.leases.clone())
        .with_clock(Clock::of_runtime(), Rng::seeded(1));
    let worker = RunningWorker::start(consumer.each(move |record: Delivery| {
        let key = record.partition_key.to_string();
        note.lock().unwrap().insert((record.shard.stream.to_string(), key));
        std::future::ready(Ok::<(), HandlerError>(()))
    }));
    world.until("both come", || seen.lock().unwrap().len() == 2).await;
    worker.stop().await;
    let want = [(THEIRS, "foreign"), (STREAM, "own")];
    let want = want.map(|(stream, key)| (stream.to_owned(), key.to_owned()));
    assert_eq!(*seen.lock().unwrap(), BTreeSet::from(want));
}
