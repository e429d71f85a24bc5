//! A fleet of two workers on a real store, with one unreadable row between theirs.

use anabranch::clock::{Clock, Rng};
use anabranch::event::{Event, Events, LeaseEvent};
use anabranch::lease::{
    Coordinator, CoordinatorSettings, FinishReason, LeaseHandle, LeaseStore, StoreError,
};
use anabranch::stream::LocalKinesis;
use anabranch_local::op::create_stream;
use anabranch_local::{Engine, EngineOptions};
use anabranch_model::ids::ShardId;
use anabranch_model::lease::{Layout, LeaseKey};
use anabranch_model::position::StartPosition;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const STREAM: &str = "orders";
/// Index of the shard whose row the test spoils.
pub(crate) const BAD: u32 = 0;
const SHARDS: u32 = 4;

struct Worker<S: LeaseStore> {
    coordinator: Coordinator<S, LocalKinesis>,
    told: Arc<Mutex<Vec<String>>>,
    _readers: JoinSet<()>,
}

impl<S: LeaseStore> Worker<S> {
    async fn start(store: S, engine: &Arc<Engine>, name: &str) -> Self {
        let settings = CoordinatorSettings::new(name).with_lease_time_ms(4_000);
        let settings = settings.with_stream(STREAM, StartPosition::TrimHorizon);
        let told = Arc::new(Mutex::new(Vec::new()));
        let listener = told.clone();
        let events = Events::new(move |event| {
            if let Event::Lease(LeaseEvent::RowUnreadable { row, .. }) = event {
                listener.lock().expect("no listener panics").push(row.clone());
            }
        });
        let api = Arc::new(LocalKinesis::new(Arc::clone(engine)));
        let (clock, chance) = (Clock::machine(), Rng::of_system());
        let started =
            Coordinator::start(Arc::new(store), api, settings, clock, chance, events).await;
        let (coordinator, grips) = started.expect("the worker starts");
        let mut readers = JoinSet::new();
        readers.spawn(read_all(grips));
        Self { coordinator, told, _readers: readers }
    }

    fn shards(&self) -> BTreeSet<ShardId> {
        self.coordinator.leases().into_iter().map(|lease| lease.shard).collect()
    }
}

async fn read_all<S: LeaseStore>(mut grips: mpsc::Receiver<LeaseHandle<S, LocalKinesis>>) {
    let mut shards = JoinSet::new();
    while let Some(grip) = grips.recv().await {
        shards.spawn(async move {
            grip.wait_for_stop().await;
            grip.finish(FinishReason::Drained);
        });
    }
}

async fn until(what: &str, within: Duration, holds: impl Fn() -> bool) {
    let waited = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(within, waited).await;
    assert!(waited.is_ok(), "{what}: not within {within:?}");
}

/// Starts a worker, spoils the row of [`BAD`], starts another worker and kills the first one. All
/// other shards are first shared and then taken over by the second worker.
pub(crate) async fn check<S: LeaseStore + Clone>(stores: [S; 2], spoil: impl AsyncFnOnce()) {
    const SOON: Duration = Duration::from_secs(30);
    let engine = Arc::new(Engine::new(EngineOptions::instant(), anabranch_local::Clock::system()));
    let stream = create_stream::Request {
        stream_name: Some(STREAM.to_owned()),
        shard_count: Some(i64::from(SHARDS)),
        ..Default::default()
    };
    engine.create_stream(&stream).expect("a new engine takes a new stream");
    let bad = ShardId::from_index(BAD);
    let others: BTreeSet<_> = (0..SHARDS).filter(|i| *i != BAD).map(ShardId::from_index).collect();
    let [store, other] = stores;
    let a = Worker::start(store.clone(), &engine, "a").await;
    until("the first worker holds all", SOON, || a.shards().len() == 4).await;
    spoil().await;

    let listing = store.list(&STREAM.into()).await.expect("a list beside the bad row");
    let listed: BTreeSet<_> = listing.rows.iter().map(|row| row.key.shard.clone()).collect();
    assert_eq!(listed, others);
    let unreadable: Vec<_> = listing.unreadable.iter().map(|row| &row.key).collect();
    assert_eq!(unreadable, [&bad]);
    let error = store.get(&LeaseKey::new(STREAM, bad.clone())).await.expect_err("it is bad");
    assert!(matches!(error, StoreError::UnreadableRow { .. }), "{error:?}");

    let b = Worker::start(other, &engine, "b").await;
    until("they share the rest", SOON, || !b.shards().is_empty()).await;
    drop(a);
    until("the survivor holds the rest", SOON, || b.shards() == others).await;
    let told = b.told.lock().expect("no listener panics").clone();
    assert_eq!(told, [format!("{STREAM}/{bad}")], "once, and no other");
}

/// Checks that a store poll leaves out an unreadable worker row by name, and returns the other
/// rows.
pub(crate) async fn check_worker<S: LeaseStore>(store: &S, names: [&str; 2]) {
    assert_eq!(store.layout(), Layout::Native);
    let [bad, good] = names;
    let look = store.poll().await.expect("a look beside the bad row");
    let seen: Vec<_> = look.workers.iter().map(|worker| worker.id.as_str()).collect();
    assert_eq!(seen, [good]);
    let unreadable: Vec<_> = look.unreadable.iter().map(|row| row.key.as_str()).collect();
    assert_eq!(unreadable, [bad]);
    let error = store.worker(&bad.into()).await.expect_err("it is bad");
    assert!(matches!(error, StoreError::UnreadableRow { .. }), "{error:?}");
}
