//! In-process coordinators on one stream, and readers that have nothing to read.

use crate::counted::{CallCounts, CountingStore};
use anabranch::clock::{Clock, Rng};
use anabranch::event::Events;
use anabranch::lease::{
    Coordinator, CoordinatorSettings, FinishReason, LeaseHandle, LeaseStore, StopReason, StopResult,
};
use anabranch::stream::LocalKinesis;
use anabranch_local::op::{StreamTarget, create_stream, merge_shards, split_shard};
use anabranch_local::{Engine, EngineOptions};
use anabranch_model::position::StartPosition;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub(crate) const STREAM: &str = "orders";

/// Time that a stopping worker has to release its leases.
const GRACE_MS: u64 = 20_000;

/// Returns a stream with `shards` shards.
pub(crate) fn stream(shards: usize) -> LocalKinesis {
    LocalKinesis::new(engine(shards))
}

fn engine(shards: usize) -> Arc<Engine> {
    let options = EngineOptions { shard_limit: u32::MAX, ..EngineOptions::instant() };
    let clock = anabranch_local::Clock::manual(1_700_000_000_000);
    let engine = Arc::new(Engine::new(options, clock));
    let request = create_stream::Request {
        stream_name: Some(STREAM.to_owned()),
        shard_count: i64::try_from(shards).ok(),
        ..Default::default()
    };
    engine.create_stream(&request).expect("a new engine takes a new stream");
    engine
}

/// Returns a stream with `shards` shards, each created by a split of a shard that is past
/// retention.
pub(crate) fn split_stream(shards: u32) -> LocalKinesis {
    let parents = shards / 2;
    let engine = engine(parents as usize);
    let width = u128::MAX / u128::from(parents);
    for parent in 0..parents {
        let request = split_shard::Request {
            stream: StreamTarget::named(STREAM),
            shard_to_split: Some(format!("shardId-{parent:012}")),
            new_starting_hash_key: Some((u128::from(parent) * width + width / 2).to_string()),
        };
        engine.split_shard(&request).expect("the parent is open");
    }
    engine.clock().advance(25 * 3_600_000);
    LocalKinesis::new(engine)
}

/// Returns a stream with `shards` shards, each created by a merge of two that are past retention.
pub(crate) fn merged_stream(shards: u32) -> LocalKinesis {
    let engine = engine(2 * shards as usize);
    for pair in 0..shards {
        let request = merge_shards::Request {
            stream: StreamTarget::named(STREAM),
            shard_to_merge: Some(format!("shardId-{:012}", 2 * pair)),
            adjacent_shard_to_merge: Some(format!("shardId-{:012}", 2 * pair + 1)),
        };
        engine.merge_shards(&request).expect("both parents are open");
    }
    engine.clock().advance(25 * 3_600_000);
    LocalKinesis::new(engine)
}

/// Returns the default settings for a worker named `name`.
pub(crate) fn settings(name: &str) -> CoordinatorSettings {
    CoordinatorSettings::new(name).with_stream(STREAM, StartPosition::TrimHorizon)
}

/// One worker. Dropping it stops it as in a crash.
pub(crate) struct Worker<S: LeaseStore> {
    pub(crate) coordinator: Coordinator<CountingStore<S>, LocalKinesis>,
    /// Time when the first lease handle arrived.
    first_grip: watch::Receiver<Option<Instant>>,
    _readers: JoinSet<()>,
}

impl<S: LeaseStore> Worker<S> {
    pub(crate) async fn start(
        store: S,
        tally: &Arc<CallCounts>,
        stream: &LocalKinesis,
        settings: CoordinatorSettings,
        clock: Clock,
        chance: Rng,
    ) -> Result<Self, String> {
        let store = Arc::new(CountingStore { inner: store, tally: tally.clone() });
        let api = Arc::new(stream.clone());
        let started = Coordinator::start(store, api, settings, clock, chance, Events::none()).await;
        let (coordinator, grips) = started.map_err(|error| error.to_string())?;
        let (grip_came, first_grip) = watch::channel(None);
        let mut readers = JoinSet::new();
        readers.spawn(hold_all(grips, grip_came));
        Ok(Self { coordinator, first_grip, _readers: readers })
    }

    /// Returns the number of leases that it holds.
    pub(crate) fn holds(&self) -> usize {
        self.coordinator.leases().len()
    }

    /// Waits for the first lease handle. Returns the time when it arrived.
    pub(crate) async fn first_grip(&mut self) -> Result<Instant, String> {
        let came = self.first_grip.wait_for(Option::is_some).await;
        came.ok().and_then(|at| *at).ok_or_else(|| "the worker has ended".to_owned())
    }

    pub(crate) async fn stop(self) -> Result<(), String> {
        match self.coordinator.stop(GRACE_MS).await {
            StopResult::Left => Ok(()),
            other => Err(format!("the worker did not leave: {other:?}")),
        }
    }
}

async fn hold_all<S: LeaseStore>(
    mut grips: mpsc::Receiver<LeaseHandle<CountingStore<S>, LocalKinesis>>,
    came: watch::Sender<Option<Instant>>,
) {
    let mut readers = JoinSet::new();
    while let Some(grip) = grips.recv().await {
        came.send_if_modified(|first| {
            let new = first.is_none();
            first.get_or_insert_with(Instant::now);
            new
        });
        readers.spawn(async move {
            let (StopReason::Drain { .. } | StopReason::Lost) = grip.wait_for_stop().await;
            grip.finish(FinishReason::Drained);
        });
        while readers.try_join_next().is_some() {}
    }
}

/// Returns the smallest and the largest number of leases held by one worker.
pub(crate) fn spread<S: LeaseStore>(workers: &[Worker<S>]) -> (usize, usize) {
    let held = || workers.iter().map(Worker::holds);
    (held().min().unwrap_or(0), held().max().unwrap_or(0))
}

/// Condition to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Until {
    /// Every lease is owned.
    Owned,
    /// Every lease is owned, and the workers' lease counts differ by at most one.
    Level,
}

/// Waits for `until`, checking at intervals of `every`. Fails after `within`.
pub(crate) async fn wait<S: LeaseStore>(
    workers: &[Worker<S>],
    leases: usize,
    until: Until,
    every: Duration,
    within: Duration,
) -> Result<(), String> {
    let held = || workers.iter().map(Worker::holds).sum::<usize>();
    let reached = async {
        loop {
            let (fewest, most) = spread(workers);
            if held() == leases && (until == Until::Owned || most - fewest <= 1) {
                return;
            }
            tokio::time::sleep(every).await;
        }
    };
    tokio::time::timeout(within, reached).await.map_err(|_| {
        let (fewest, most) = spread(workers);
        let held = held();
        format!("{held} of {leases} leases are owned, {fewest} to {most} each, after {within:?}")
    })
}
