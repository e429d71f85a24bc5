//! Workers that share one store and one stream, and a watch on their deliveries.

use crate::reader::{self, ReaderBehavior};
use crate::troubled::FaultyStore;
use anabranch::clock::{Clock, Rng};
use anabranch::event::{Event, Events, LeaseEvent};
use anabranch::lease::{
    Coordinator, CoordinatorSettings, CoordinatorStartError, LeaseHandle, MemoryStore, StopResult,
};
use anabranch::stream::LocalKinesis;
use anabranch_local::op::{StreamTarget, create_stream, delete_stream, merge_shards, split_shard};
use anabranch_local::{Engine, EngineOptions};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Layout, Lease, LeaseKey, LeaseTable};
use anabranch_model::position::StartPosition;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;

pub(crate) type Api = LocalKinesis;
pub(crate) const STREAM: &str = "s";
pub(crate) const LEASE_TIME_MS: u64 = 10_000;

/// Log of deliveries and their times. A delivery by a worker that has lost the lease fails the
/// test, and so does a reader that panics: dropping [`LeaseFleet`] checks both.
#[derive(Clone)]
pub(crate) struct DeliveryWatch {
    clock: Clock,
    log: Arc<Mutex<DeliveryLog>>,
}

#[derive(Default)]
struct DeliveryLog {
    /// Last owner that delivered each shard.
    last: BTreeMap<LeaseKey, Delivered>,
    /// Order in which readers began.
    begun: Vec<String>,
    /// Violations.
    wrong: Vec<String>,
}

/// Deliveries of the last owner of a shard.
#[derive(Clone)]
struct Delivered {
    worker: String,
    term: u64,
    first_ms: u64,
    last_ms: u64,
}

/// Reports a panic when a panic drops it.
pub(crate) struct PanicNote(DeliveryWatch, String);

impl Drop for PanicNote {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.log().wrong.push(format!("the reader of {} panicked", self.1));
        }
    }
}

impl DeliveryWatch {
    /// Adds the start of a reader.
    pub(crate) fn began(&self, grip: &LeaseHandle<FaultyStore, Api>) -> PanicNote {
        let shard = grip.key().shard.to_string();
        self.log().begun.push(shard.clone());
        PanicNote(self.clone(), shard)
    }

    /// Adds a delivery. One under an older term than another's comes from a worker that has lost
    /// the lease. This applies to KCL's layout too: only Java workers steal.
    pub(crate) fn delivered(&self, grip: &LeaseHandle<FaultyStore, Api>) {
        let mut log = self.log();
        let (lease, now_ms) = (grip.key(), self.clock.now_ms());
        let (worker, term) = (grip.worker().to_string(), grip.lease().term);
        let first_ms = match log.last.get(lease) {
            Some(last) if last.term == term => last.first_ms,
            Some(last) if last.term > term => {
                let (other, at, since_ms) = (&last.worker, last.term, last.first_ms);
                let words = format!(
                    "{worker} delivers {lease} at {now_ms} under term {term}, and {other} has \
                     done so under {at} since {since_ms}"
                );
                log.wrong.push(words);
                return;
            }
            _ => now_ms,
        };
        log.last.insert(lease.clone(), Delivered { worker, term, first_ms, last_ms: now_ms });
    }

    /// Forgets a lease whose row the test removed: its terms begin again.
    pub(crate) fn forget(&self, lease: &LeaseKey) {
        self.log().last.remove(lease);
    }

    /// Returns the worker that last delivered a shard, and when.
    pub(crate) fn last(&self, shard: &str) -> Option<(String, u64)> {
        self.log()
            .last
            .get(&LeaseKey::new(STREAM, shard))
            .map(|last| (last.worker.clone(), last.last_ms))
    }

    /// Returns the shards in the order in which readers began.
    pub(crate) fn begun(&self) -> Vec<String> {
        self.log().begun.clone()
    }

    fn check(&self) {
        let wrong = std::mem::take(&mut self.log().wrong);
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    fn log(&self) -> MutexGuard<'_, DeliveryLog> {
        // A reader that panicked is noted, and must not hide other violations.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker.
pub(crate) struct TestWorker {
    pub(crate) coordinator: Coordinator<FaultyStore, Api>,
    pub(crate) store: FaultyStore,
    pub(crate) manners: Arc<ReaderBehavior>,
    _readers: JoinSet<()>,
}

impl TestWorker {
    /// Returns the number of leases that it holds.
    pub(crate) fn holds(&self) -> usize {
        self.coordinator.leases().len()
    }

    pub(crate) async fn stop(self, grace_ms: u64) -> StopResult {
        self.coordinator.stop(grace_ms).await
    }
}

/// One store and one stream. Dropping it fails the test if a worker delivered without owning the
/// lease, or if a reader panicked in a task of its own.
pub(crate) struct LeaseFleet {
    pub(crate) store: MemoryStore,
    pub(crate) engine: Arc<Engine>,
    pub(crate) watch: DeliveryWatch,
    pub(crate) clock: Clock,
    pub(crate) events: Arc<Mutex<Vec<(u64, LeaseEvent)>>>,
}

impl Drop for LeaseFleet {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.watch.check();
        }
    }
}

impl LeaseFleet {
    pub(crate) fn new(layout: Layout, shards: i64) -> Self {
        let clock = Clock::of_runtime();
        let local = anabranch_local::Clock::manual(1_700_000_000_000);
        let fleet = Self {
            store: MemoryStore::with_layout(layout),
            engine: Arc::new(Engine::new(EngineOptions::instant(), local)),
            watch: DeliveryWatch { clock: clock.clone(), log: Arc::default() },
            clock,
            events: Arc::default(),
        };
        fleet.create(shards);
        fleet
    }

    pub(crate) fn native(shards: i64) -> Self {
        Self::new(Layout::Native, shards)
    }

    pub(crate) fn settings(name: &str) -> CoordinatorSettings {
        CoordinatorSettings::new(name)
            .with_lease_time_ms(LEASE_TIME_MS)
            .with_stream(STREAM, StartPosition::TrimHorizon)
    }

    pub(crate) async fn worker(&self, name: &str) -> TestWorker {
        self.try_worker(Self::settings(name)).await.unwrap()
    }

    pub(crate) async fn try_worker(
        &self,
        settings: CoordinatorSettings,
    ) -> Result<TestWorker, CoordinatorStartError> {
        self.worker_on(FaultyStore::new(self.store.clone()), settings).await
    }

    pub(crate) async fn worker_on(
        &self,
        store: FaultyStore,
        settings: CoordinatorSettings,
    ) -> Result<TestWorker, CoordinatorStartError> {
        let api = Arc::new(LocalKinesis::new(self.engine.clone()));
        let (events, clock) = (self.events.clone(), self.clock.clone());
        let listener = {
            let clock = clock.clone();
            Events::new(move |event| {
                if let Event::Lease(event) = event {
                    events.lock().unwrap().push((clock.now_ms(), event.clone()));
                }
            })
        };
        let seed = settings.name.bytes().map(u64::from).sum();
        let chance = Rng::seeded(seed);
        let (coordinator, grips) = Coordinator::start(
            Arc::new(store.clone()),
            api.clone(),
            settings,
            clock,
            chance,
            listener,
        )
        .await?;
        let manners = Arc::new(ReaderBehavior::default());
        let mut readers = JoinSet::new();
        readers.spawn(reader::run(grips, api, self.watch.clone(), manners.clone()));
        Ok(TestWorker { coordinator, store, manners, _readers: readers })
    }

    /// Waits until something holds, in paused time. Returns how long that took, in milliseconds.
    pub(crate) async fn until(&self, what: &str, within_ms: u64, holds: impl Fn() -> bool) -> u64 {
        let start = self.clock.now_ms();
        while !holds() {
            assert!(
                self.clock.now_ms() - start < within_ms,
                "{what}: not within {within_ms} ms\n{:#?}\n{:#?}",
                self.rows(),
                self.events.lock().unwrap(),
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.clock.now_ms() - start
    }

    pub(crate) async fn pass(&self, ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    pub(crate) fn table(&self) -> LeaseTable {
        self.store.snapshot()
    }

    pub(crate) fn rows(&self) -> Vec<Lease> {
        self.table().leases(&StreamName::from(STREAM)).cloned().collect()
    }

    /// Returns the number of matching events so far.
    pub(crate) fn count(&self, of: impl Fn(&LeaseEvent) -> bool) -> usize {
        self.events.lock().unwrap().iter().filter(|(_, event)| of(event)).count()
    }

    pub(crate) fn create(&self, shards: i64) {
        self.create_as(STREAM, shards);
    }

    pub(crate) fn create_as(&self, name: &str, shards: i64) {
        let request = create_stream::Request {
            stream_name: Some(name.to_owned()),
            shard_count: Some(shards),
            ..Default::default()
        };
        self.engine.create_stream(&request).unwrap();
    }

    pub(crate) fn delete(&self) {
        let request =
            delete_stream::Request { stream: StreamTarget::named(STREAM), ..Default::default() };
        self.engine.delete_stream(&request).unwrap();
    }

    pub(crate) fn split(&self, shard: u32, at: u128) {
        let request = split_shard::Request {
            stream: StreamTarget::named(STREAM),
            shard_to_split: Some(id(shard)),
            new_starting_hash_key: Some(at.to_string()),
        };
        self.engine.split_shard(&request).unwrap();
    }

    pub(crate) fn merge(&self, shard: u32, neighbour: u32) {
        let request = merge_shards::Request {
            stream: StreamTarget::named(STREAM),
            shard_to_merge: Some(id(shard)),
            adjacent_shard_to_merge: Some(id(neighbour)),
        };
        self.engine.merge_shards(&request).unwrap();
    }
}

pub(crate) fn id(shard: u32) -> String {
    format!("shardId-{shard:012}")
}
