//! Real coordinators on a real database: they share leases, and hand over when one of them stops.

use crate::postgres_server::Server;
use crate::steps::sqlite;
use anabranch::clock::{Clock, Rng};
use anabranch::event::Events;
use anabranch::lease::{
    Coordinator, CoordinatorSettings, FinishReason, LeaseHandle, LeaseStore, PostgresStore,
    StopResult,
};
use anabranch::stream::LocalKinesis;
use anabranch_local::op::create_stream;
use anabranch_local::{Engine, EngineOptions};
use anabranch_model::position::StartPosition;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const SHARDS: i64 = 8;
const STREAM: &str = "orders";

struct Worker<S: LeaseStore> {
    coordinator: Coordinator<S, LocalKinesis>,
    _readers: JoinSet<()>,
}

impl<S: LeaseStore> Worker<S> {
    async fn start(store: S, engine: &Arc<Engine>, name: &str) -> Self {
        let settings =
            CoordinatorSettings::new(name).with_stream(STREAM, StartPosition::TrimHorizon);
        let (coordinator, grips) = Coordinator::start(
            Arc::new(store),
            Arc::new(LocalKinesis::new(Arc::clone(engine))),
            settings,
            Clock::machine(),
            Rng::of_system(),
            Events::none(),
        )
        .await
        .unwrap();
        let mut readers = JoinSet::new();
        readers.spawn(read_all(grips));
        Self { coordinator, _readers: readers }
    }

    fn holds(&self) -> usize {
        self.coordinator.leases().len()
    }
}

/// Releases each shard as soon as a stop is requested.
async fn read_all<S: LeaseStore>(mut grips: mpsc::Receiver<LeaseHandle<S, LocalKinesis>>) {
    let mut shards = JoinSet::new();
    while let Some(grip) = grips.recv().await {
        shards.spawn(async move {
            grip.wait_for_stop().await;
            grip.finish(FinishReason::Drained);
        });
        while shards.try_join_next().is_some() {}
    }
}

/// Waits until something holds, and prints how long that took.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let clock = Clock::machine();
    let start = clock.now_ms();
    while !holds() {
        assert!(clock.now_ms() - start < 120_000, "{what}: it never came to that");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("{what}: {} ms", clock.now_ms() - start);
}

pub(crate) async fn share_and_hand_over<S: LeaseStore + Clone>(stores: [S; 2]) {
    let engine = Arc::new(Engine::new(EngineOptions::instant(), anabranch_local::Clock::system()));
    let stream = create_stream::Request {
        stream_name: Some(STREAM.to_owned()),
        shard_count: Some(SHARDS),
        ..Default::default()
    };
    engine.create_stream(&stream).unwrap();
    let [first, second] = stores;
    let a = Worker::start(first, &engine, "a").await;
    until("the first holds all", || a.holds() == 8).await;
    let b = Worker::start(second, &engine, "b").await;
    until("both hold half", || (a.holds(), b.holds()) == (4, 4)).await;
    assert!(matches!(a.coordinator.stop(30_000).await, StopResult::Left));
    until("the second holds all after the first has stopped", || b.holds() == 8).await;
    assert!(matches!(b.coordinator.stop(30_000).await, StopResult::Left));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fleet_on_sqlite_shares_its_leases_and_hands_them_over() {
    let (folder, store) = sqlite();
    let other = anabranch::lease::SqliteStore::open(folder.path().join("leases.db"), "app");
    Box::pin(share_and_hand_over([store, other.unwrap()])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fleet_on_postgres_shares_its_leases_and_hands_them_over() {
    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    let stores = [(), ()].map(|()| PostgresStore::connect(&url, "app").unwrap());
    Box::pin(share_and_hand_over(stores)).await;
}
