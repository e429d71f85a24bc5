//! A lease store that counts calls and forwards them.

use anabranch::lease::{LeaseStore, StoreError, StorePoll};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, KclProbe, Layout, Lease, LeaseChange, LeaseKey, LeaseListing, WorkerChange,
    WorkerId, WorkerRow, Write, WriteOutcome,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Kind of a store call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Heartbeat of a worker, or renewal of a lease in KCL's layout.
    Beat,
    Checkpoint,
    /// Creation of a row that may exist already.
    Create,
    Take,
    /// Any other write.
    OtherWrite,
    Look,
    List,
    /// Read of one row, or of the application's facts.
    OtherRead,
}

impl Kind {
    const ALL: usize = 8;

    fn of(write: &Write) -> Self {
        match write {
            Write::Lease { change: LeaseChange::Renew { .. }, .. }
            | Write::Worker { change: WorkerChange::Beat { .. }, .. } => Self::Beat,
            Write::Lease { change: LeaseChange::Checkpoint { .. }, .. } => Self::Checkpoint,
            Write::Lease { change: LeaseChange::Create(_), .. } => Self::Create,
            Write::Lease { change: LeaseChange::Take { .. }, .. } => Self::Take,
            _ => Self::OtherWrite,
        }
    }
}

/// Calls so far, by kind.
#[derive(Debug, Default)]
pub(crate) struct CallCounts {
    asked: [AtomicU64; Kind::ALL],
    refused: [AtomicU64; Kind::ALL],
    /// Calls that failed.
    failed: AtomicU64,
    /// Time when a worker first requested a lease of another one.
    named: Mutex<Option<Instant>>,
    /// Extra delay of each call, in milliseconds.
    call_ms: u64,
}

impl CallCounts {
    /// Returns counters for stores whose calls are delayed by `call_ms` milliseconds.
    pub(crate) fn slow(call_ms: u64) -> Self {
        Self { call_ms, ..Self::default() }
    }

    pub(crate) fn asked(&self, kind: Kind) -> u64 {
        self.asked[kind as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn refused(&self, kind: Kind) -> u64 {
        self.refused[kind as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Returns the number of writes, refused or not.
    pub(crate) fn writes(&self) -> u64 {
        use Kind::{Beat, Checkpoint, Create, OtherWrite, Take};
        [Beat, Checkpoint, Create, Take, OtherWrite].map(|kind| self.asked(kind)).iter().sum()
    }

    /// Returns the time when a worker first requested a lease of another one.
    pub(crate) fn named(&self) -> Option<Instant> {
        *self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resets all call counts to zero.
    pub(crate) fn reset(&self) {
        for count in self.asked.iter().chain(&self.refused).chain([&self.failed]) {
            count.store(0, Ordering::Relaxed);
        }
    }

    async fn ask(&self, kind: Kind) {
        self.asked[kind as usize].fetch_add(1, Ordering::Relaxed);
        if self.call_ms > 0 {
            tokio::time::sleep(Duration::from_millis(self.call_ms)).await;
        }
    }

    fn answer<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if answer.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    fn note(&self, write: &Write) {
        if matches!(write, Write::Lease { change: LeaseChange::RequestHandOver { .. }, .. }) {
            let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
            named.get_or_insert_with(Instant::now);
        }
    }
}

/// A store of one worker. Workers share the counters.
#[derive(Clone, Debug)]
pub(crate) struct CountingStore<S> {
    pub(crate) inner: S,
    pub(crate) tally: Arc<CallCounts>,
}

impl<S: LeaseStore> LeaseStore for CountingStore<S> {
    fn layout(&self) -> Layout {
        self.inner.layout()
    }

    fn poll_interval(&self) -> u64 {
        self.inner.poll_interval()
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.tally.answer(self.inner.prepare().await)
    }

    async fn probe(&self) -> Result<KclProbe, StoreError> {
        self.inner.probe().await
    }

    async fn application(&self) -> Result<ApplicationFacts, StoreError> {
        self.tally.ask(Kind::OtherRead).await;
        self.tally.answer(self.inner.application().await)
    }

    async fn poll(&self) -> Result<StorePoll, StoreError> {
        // In KCL's layout a poll reads nothing; only a list does.
        if self.layout() == Layout::Native {
            self.tally.ask(Kind::Look).await;
        }
        self.tally.answer(self.inner.poll().await)
    }

    async fn list(&self, stream: &StreamName) -> Result<LeaseListing, StoreError> {
        self.tally.ask(Kind::List).await;
        self.tally.answer(self.inner.list(stream).await)
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        self.tally.ask(Kind::OtherRead).await;
        self.tally.answer(self.inner.get(key).await)
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<WorkerRow>, StoreError> {
        self.tally.ask(Kind::OtherRead).await;
        self.tally.answer(self.inner.worker(id).await)
    }

    async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        let kind = Kind::of(write);
        self.tally.ask(kind).await;
        self.tally.note(write);
        let outcome = self.tally.answer(self.inner.write(write).await)?;
        if let WriteOutcome::Refused { .. } = outcome {
            self.tally.refused[kind as usize].fetch_add(1, Ordering::Relaxed);
        }
        Ok(outcome)
    }

    async fn wait_for_change(&self) {
        self.inner.wait_for_change().await;
    }
}
