//! A lease store that stops answering: delivery stops before others may take the shards.

use crate::world::{ConsumerFixture, RunningWorker, STREAM, pause};
use anabranch::clock::{Clock, Rng};
use anabranch::consumer::{Consumer, Delivery, HandlerError, RunError};
use anabranch::event::Events;
use anabranch::lease::{LeaseStore, MemoryStore, StoreError, StorePoll};
use anabranch::stream::LocalKinesis;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, Layout, Lease, LeaseChange, LeaseKey, LeaseListing, WorkerId, WorkerRow,
    Write, WriteOutcome,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A store from which one worker can be cut off.
#[derive(Clone)]
pub(crate) struct CutOffStore {
    pub(crate) store: MemoryStore,
    pub(crate) off: Arc<AtomicBool>,
    /// Affected calls.
    pub(crate) what: CutOff,
}

/// The calls from which a worker is cut off.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CutOff {
    All,
    /// All calls, and none is answered.
    Silence,
    Checkpoints,
    /// Writes of shard ends.
    Ends,
    /// Polls of the leases, which panic.
    Sanity,
    /// The replies to checkpoints, which are stored.
    Answers,
}

impl CutOffStore {
    async fn reach(&self) -> Result<&MemoryStore, StoreError> {
        if self.off.load(Ordering::Relaxed) && self.what == CutOff::Silence {
            return std::future::pending().await;
        }
        if self.off.load(Ordering::Relaxed) && self.what == CutOff::All {
            let (store, detail) = ("memory".to_owned(), "cut off".to_owned());
            return Err(StoreError::Unreachable { store, detail, source: None });
        }
        Ok(&self.store)
    }
}

impl LeaseStore for CutOffStore {
    fn layout(&self) -> Layout {
        self.store.layout()
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.reach().await?.prepare().await
    }

    async fn application(&self) -> Result<ApplicationFacts, StoreError> {
        self.reach().await?.application().await
    }

    async fn poll(&self) -> Result<StorePoll, StoreError> {
        let sane = self.what != CutOff::Sanity || !self.off.load(Ordering::Relaxed);
        assert!(sane, "on purpose");
        self.reach().await?.poll().await
    }

    async fn list(&self, stream: &StreamName) -> Result<LeaseListing, StoreError> {
        self.reach().await?.list(stream).await
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        self.reach().await?.get(key).await
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<WorkerRow>, StoreError> {
        self.reach().await?.worker(id).await
    }

    async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        let off = self.off.load(Ordering::Relaxed);
        let struck = match write {
            Write::Lease { change: LeaseChange::Checkpoint { .. }, .. } => CutOff::Checkpoints,
            Write::Lease { change: LeaseChange::End { .. }, .. } => CutOff::Ends,
            _ => CutOff::All,
        };
        if off && self.what == CutOff::Answers && struck == CutOff::Checkpoints {
            let _ = self.store.write(write).await?;
            return std::future::pending().await;
        }
        if off && struck == self.what {
            let (store, detail) = ("memory".to_owned(), "cut off".to_owned());
            return Err(StoreError::Unreachable { store, detail, source: None });
        }
        self.reach().await?.write(write).await
    }
}

pub(crate) fn consumer(
    world: &ConsumerFixture,
    store: CutOffStore,
) -> Consumer<LocalKinesis, CutOffStore> {
    Consumer::new(STREAM, "mailer")
        .with_kinesis(LocalKinesis::new(Arc::clone(&world.engine)))
        .with_leases(store)
        .with_clock(Clock::of_runtime(), Rng::seeded(9))
        .with_events(Events::new({
            let told = Arc::clone(&world.events);
            move |event| told.lock().unwrap().push(event.clone())
        }))
}

/// Waits for the next heartbeat of the only worker.
pub(crate) async fn beat(world: &ConsumerFixture) {
    let counter = || world.leases.snapshot().workers().map(|worker| worker.counter).max();
    let before = counter();
    while counter() == before {
        pause(10).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_its_store_stops_delivering_before_another_takes_over() {
    let world = ConsumerFixture::new(2);
    let off = Arc::new(AtomicBool::new(false));
    let store =
        CutOffStore { store: world.leases.clone(), off: Arc::clone(&off), what: CutOff::All };
    let late = Arc::new(AtomicBool::new(false));
    let delivered_late = Arc::new(AtomicBool::new(false));
    let (note, over) = (Arc::new(world.note("cut")), Arc::clone(&late));
    let wrong = Arc::clone(&delivered_late);
    let cut = RunningWorker::start(consumer(&world, store).each(move |record: Delivery| {
        let note = Arc::clone(&note);
        if over.load(Ordering::Relaxed) {
            wrong.store(true, Ordering::Relaxed);
        }
        async move { note(record).await }
    }));
    world.put_round(20);
    world.until_all_seen().await;
    beat(&world).await;
    off.store(true, Ordering::Relaxed);
    // The lease time is ten seconds. The leases are lost after it, but delivery ends after eight.
    pause(8_200).await;
    late.store(true, Ordering::Relaxed);
    world.put_round(20);
    pause(1_500).await;
    assert!(!delivered_late.load(Ordering::Relaxed), "it delivered in its last fifth");
    pause(5_000).await;
    assert!(!delivered_late.load(Ordering::Relaxed), "it delivered after its lease time");
    let other = world.worker("other", 2);
    world.until_all_seen().await;
    off.store(false, Ordering::Relaxed);
    late.store(false, Ordering::Relaxed);
    world.put_round(20);
    world.until_all_seen().await;
    other.stop().await;
    cut.stop().await;
    world.oracle.check();
}

#[tokio::test(start_paused = true)]
async fn an_outage_shorter_than_the_lease_time_costs_nothing() {
    let world = ConsumerFixture::new(2);
    let off = Arc::new(AtomicBool::new(false));
    let store =
        CutOffStore { store: world.leases.clone(), off: Arc::clone(&off), what: CutOff::All };
    let note = world.note("one");
    let handle =
        move |record: Delivery| -> std::future::Ready<Result<(), HandlerError>> { note(record) };
    let worker = RunningWorker::start(consumer(&world, store).each(handle));
    for round in 0..40 {
        off.store(round % 10 >= 7, Ordering::Relaxed);
        world.put_round(20);
        pause(1_000).await;
    }
    world.until_all_seen().await;
    off.store(false, Ordering::Relaxed);
    worker.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stop_while_the_store_is_away_delivers_nothing_new_and_is_no_success() {
    let world = ConsumerFixture::new(2);
    let off = Arc::new(AtomicBool::new(false));
    let store =
        CutOffStore { store: world.leases.clone(), off: Arc::clone(&off), what: CutOff::All };
    let note = world.note("cut");
    let handle =
        move |record: Delivery| -> std::future::Ready<Result<(), HandlerError>> { note(record) };
    let worker = RunningWorker::start(consumer(&world, store).each(handle));
    world.put_round(20);
    world.until_all_seen().await;
    beat(&world).await;
    off.store(true, Ordering::Relaxed);
    world.put_round(20);
    world.until_all_seen().await;
    // A checkpoint is being tried by now.
    pause(1_500).await;
    worker.ask_to_stop();
    pause(200).await;
    let before = world.oracle.seen();
    world.put_round(20);
    pause(5_000).await;
    assert_eq!(world.oracle.seen(), before, "nothing new is fetched after a stop");
    let stopped = worker.stopped().await;
    assert!(matches!(stopped, Err(RunError::LeaveFailed)), "{stopped:?}");
    off.store(false, Ordering::Relaxed);
    let other = world.worker("other", 2);
    world.until_all_seen().await;
    other.stop().await;
    world.oracle.check();
}

/// Whatever the lease time, a stop takes at most the grace period and one call of the store.
#[tokio::test(start_paused = true)]
async fn a_stop_without_its_store_ends_within_the_grace_and_one_call() {
    for (what, since_ms) in
        [(CutOff::All, 0), (CutOff::All, 25_000), (CutOff::Silence, 0), (CutOff::Silence, 25_000)]
    {
        let world = ConsumerFixture::new(2);
        let off = Arc::new(AtomicBool::new(false));
        let store = CutOffStore { store: world.leases.clone(), off: Arc::clone(&off), what };
        let note = Arc::new(world.note("cut"));
        let slow = consumer(&world, store).each(move |record: Delivery| {
            let note = Arc::clone(&note);
            async move {
                pause(2).await;
                note(record).await
            }
        });
        let worker = RunningWorker::start(slow.with_settings(|settings| {
            settings.lease_time = Duration::from_mins(1);
            settings.grace_period = Duration::from_millis(200);
        }));
        world.put_round(20);
        world.until_all_seen().await;
        off.store(true, Ordering::Relaxed);
        pause(since_ms).await;
        world.put_round(2_000);
        pause(500).await;
        let asked = tokio::time::Instant::now();
        worker.ask_to_stop();
        let stopped = worker.stopped().await;
        let took_ms = asked.elapsed().as_millis();
        assert!(took_ms <= 3_200, "{since_ms}: {took_ms} ms, {stopped:?}");
        assert!(stopped.is_err(), "the leases were not given back");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_coordinator_panics_gives_its_shards_back_and_says_so() {
    let world = ConsumerFixture::new(2);
    let off = Arc::new(AtomicBool::new(false));
    let store =
        CutOffStore { store: world.leases.clone(), off: Arc::clone(&off), what: CutOff::Sanity };
    let note = Arc::new(world.note("broken"));
    let broken = RunningWorker::start(consumer(&world, store).each(move |record: Delivery| {
        let note = Arc::clone(&note);
        async move { note(record).await }
    }));
    world.put_round(20);
    world.until_all_seen().await;
    off.store(true, Ordering::Relaxed);
    let end = broken.stopped().await;
    assert!(matches!(end, Err(RunError::CoordinatorEnded)), "{end:?}");
    assert!(world.leases.snapshot().leases(&STREAM.into()).all(|lease| lease.owner.is_none()));
    let other = world.worker("other", 2);
    world.put_round(20);
    world.until_all_seen().await;
    other.stop().await;
    world.oracle.check();
    assert_eq!(world.oracle.duplicates(), 0);
}
