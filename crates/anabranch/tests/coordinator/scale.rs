//! Large streams that were resharded: at a first start, every child shard needs a proof that its
//! parents have ended.

use crate::fleet::{LeaseFleet, STREAM, id};
use crate::troubled::FaultyStore;
use anabranch::clock::{Clock, Rng};
use anabranch::event::Events;
use anabranch::lease::{Coordinator, CoordinatorSettings, LeaseHandle};
use anabranch::stream::LocalKinesis;
use anabranch_local::op::{StreamTarget, create_stream, merge_shards, split_shard};
use anabranch_local::{Engine, EngineOptions};
use anabranch_model::position::StartPosition;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Duration of each call of the store, in milliseconds.
const CALL_MS: u64 = 4;

/// Arrival times of lease handles, in milliseconds since the first worker started.
type HandleTimes = Arc<Mutex<Vec<u64>>>;

/// Origin of the shards of a stream.
#[derive(Clone, Copy)]
enum ShardOrigin {
    /// Two from each split.
    Split,
    /// One from each merge.
    Merged,
}

/// Creates a stream of `shards` shards.
fn stream(shards: u32) -> Engine {
    let options = EngineOptions { shard_limit: u32::MAX, ..EngineOptions::instant() };
    let engine = Engine::new(options, anabranch_local::Clock::manual(1_700_000_000_000));
    let request = create_stream::Request {
        stream_name: Some(STREAM.to_owned()),
        shard_count: Some(i64::from(shards)),
        ..Default::default()
    };
    engine.create_stream(&request).unwrap();
    engine
}

/// Creates a stream of `shards` open shards, each of which came from a merge.
fn merged_stream(shards: u32) -> Engine {
    let engine = stream(2 * shards);
    for pair in 0..shards {
        let request = merge_shards::Request {
            stream: StreamTarget::named(STREAM),
            shard_to_merge: Some(id(2 * pair)),
            adjacent_shard_to_merge: Some(id(2 * pair + 1)),
        };
        engine.merge_shards(&request).unwrap();
    }
    engine
}

/// Creates a stream of `shards` open shards, each of which came from a split.
fn split_stream(shards: u32) -> Engine {
    let parents = shards / 2;
    let engine = stream(parents);
    let width = u128::MAX / u128::from(parents);
    for parent in 0..parents {
        let request = split_shard::Request {
            stream: StreamTarget::named(STREAM),
            shard_to_split: Some(id(parent)),
            new_starting_hash_key: Some((u128::from(parent) * width + width / 2).to_string()),
        };
        engine.split_shard(&request).unwrap();
    }
    engine
}

/// Holds each lease handle that arrives.
async fn hold_all(
    mut grips: mpsc::Receiver<LeaseHandle<FaultyStore, LocalKinesis>>,
    came: HandleTimes,
    clock: Clock,
) {
    let mut held = Vec::new();
    while let Some(grip) = grips.recv().await {
        came.lock().unwrap().push(clock.now_ms());
        held.push(grip);
    }
}

/// Starts workers on an empty store. Checks when the first and the last shard is handed out, and
/// how many single rows are read for it.
async fn check(born: ShardOrigin, shards: u32, workers: u32, age_ms: u64, from: StartPosition) {
    let engine = Arc::new(match born {
        ShardOrigin::Split => split_stream(shards),
        ShardOrigin::Merged => merged_stream(shards),
    });
    engine.clock().advance(age_ms);
    let fleet = LeaseFleet::native(1);
    let (clock, came) = (fleet.clock.clone(), HandleTimes::default());
    let start_ms = clock.now_ms();
    let (mut stores, mut readers, mut starts) = (Vec::new(), JoinSet::new(), JoinSet::new());
    for worker in 0..workers {
        let store = FaultyStore::new(fleet.store.clone()).with_call_ms(CALL_MS);
        stores.push(store.clone());
        let settings = CoordinatorSettings::new(format!("w{worker}")).with_stream(STREAM, from);
        let api = Arc::new(LocalKinesis::new(engine.clone()));
        let (clock, chance) = (clock.clone(), Rng::seeded(u64::from(worker)));
        let (store, events) = (Arc::new(store), Events::none());
        starts.spawn(Coordinator::start(store, api, settings, clock, chance, events));
    }
    let mut running = Vec::new();
    for started in starts.join_all().await {
        let (coordinator, grips) = started.unwrap();
        running.push(coordinator);
        readers.spawn(hold_all(grips, came.clone(), clock.clone()));
    }
    let all = usize::try_from(shards).unwrap();
    while came.lock().unwrap().len() < all {
        let now_ms = clock.now_ms() - start_ms;
        assert!(now_ms < 200_000, "{} of {shards} are read", came.lock().unwrap().len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let came = came.lock().unwrap();
    let (first_ms, last_ms) = (came[0] - start_ms, came[all - 1] - start_ms);
    let count = |i: usize| stores.iter().map(|store| store.reads()[i]).sum::<u64>();
    let (rows, lists) = (count(0), count(1));
    println!(
        "{shards} shards, {workers} workers, {from:?}: first after {first_ms} ms, last after \
         {last_ms} ms, {rows} single reads, {lists} lists"
    );
    assert!(first_ms <= 5_000, "the first shard after {first_ms} ms");
    assert!(last_ms <= 60_000, "the last shard after {last_ms} ms");
    let most = u64::from(shards * workers) * 12 / 10;
    assert!(rows <= most, "{rows} single reads, {most} at the most");
}

const PAST_RETENTION_MS: u64 = 25 * 3_600_000;

#[tokio::test(start_paused = true)]
async fn ten_thousand_shards_with_trimmed_parents_are_read_soon_after_a_first_start() {
    check(ShardOrigin::Split, 10_000, 1, PAST_RETENTION_MS, StartPosition::TrimHorizon).await;
}

#[tokio::test(start_paused = true)]
async fn workers_that_start_together_on_trimmed_parents_are_as_fast() {
    check(ShardOrigin::Split, 2_000, 4, PAST_RETENTION_MS, StartPosition::TrimHorizon).await;
}

#[tokio::test(start_paused = true)]
async fn shards_that_were_merged_from_trimmed_parents_are_as_fast() {
    check(ShardOrigin::Merged, 5_000, 1, PAST_RETENTION_MS, StartPosition::TrimHorizon).await;
}

#[tokio::test(start_paused = true)]
async fn workers_that_start_together_on_merged_shards_are_as_fast() {
    check(ShardOrigin::Merged, 2_000, 4, PAST_RETENTION_MS, StartPosition::TrimHorizon).await;
}

/// The parents are listed, and lie before the start.
#[tokio::test(start_paused = true)]
async fn a_start_at_latest_behind_a_reshard_of_all_shards_is_as_fast() {
    check(ShardOrigin::Split, 2_000, 2, 5_000, StartPosition::Latest).await;
}
