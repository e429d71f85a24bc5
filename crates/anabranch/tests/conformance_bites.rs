//! Slightly wrong stores must fail the conformance suite.

use anabranch::lease::{LeaseStore, MemoryStore, StoreError, StorePoll, conformance};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, Layout, Lease, LeaseChange, LeaseKey, LeaseListing, LeaseTable, Nonce,
    WorkerChange, WorkerId, WorkerRow, Write, WriteOutcome, WriteRefusal,
};
use std::sync::{Arc, Mutex};

/// Rule that the store breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flaw {
    None,
    TakesUnderAnyTerm,
    ReleasesForAnyOwner,
    ReplacesAnyCheckpoint,
    FencesAtAnyCounter,
    ForgetsNonces,
    ForgetsPendingCheckpoints,
    ForgetsLeaseTimes,
    KeepsTheVersion,
    MovesTheVersionWithBeats,
    CreatesOverARow,
    ShowsOldRows,
    SaysTheWrongWhy,
    LetsTwoWin,
}

#[derive(Clone)]
struct FlawedStore {
    inner: MemoryStore,
    flaw: Flaw,
    /// Rows before the last write.
    before: Arc<Mutex<LeaseTable>>,
}

impl FlawedStore {
    fn new(layout: Layout, flaw: Flaw) -> Self {
        let before = Arc::new(Mutex::new(LeaseTable::new(layout)));
        Self { inner: MemoryStore::with_layout(layout), flaw, before }
    }

    /// Returns the write with the broken part of its condition made true.
    fn doctor(&self, write: &Write) -> Write {
        let mut write = write.clone();
        match &mut write {
            Write::Lease { key, change, nonce } => {
                let row = self.inner.snapshot().lease(key).cloned();
                match (self.flaw, change, row) {
                    (Flaw::TakesUnderAnyTerm, LeaseChange::Take { term, .. }, Some(row)) => {
                        *term = row.term;
                    }
                    (Flaw::ReleasesForAnyOwner, LeaseChange::Release { owner, .. }, Some(row)) => {
                        *owner = row.owner.unwrap_or_else(|| owner.clone());
                    }
                    (
                        Flaw::ReplacesAnyCheckpoint,
                        LeaseChange::Checkpoint { replaces, .. },
                        Some(row),
                    ) => *replaces = row.checkpoint,
                    (
                        Flaw::ForgetsPendingCheckpoints,
                        LeaseChange::Checkpoint { pending, .. },
                        _,
                    ) => *pending = None,
                    (Flaw::ForgetsNonces, _, _) => *nonce = Nonce(0),
                    _ => {}
                }
            }
            Write::Worker { change: WorkerChange::Join { lease_time_ms, .. }, .. }
                if self.flaw == Flaw::ForgetsLeaseTimes =>
            {
                *lease_time_ms = None;
            }
            Write::Worker { id, change: WorkerChange::Fence { counter }, .. } => {
                if let (Flaw::FencesAtAnyCounter, Some(row)) =
                    (self.flaw, self.inner.snapshot().worker(id))
                {
                    *counter = row.counter;
                }
            }
            _ => {}
        }
        write
    }
}

impl LeaseStore for FlawedStore {
    fn layout(&self) -> Layout {
        self.inner.layout()
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.inner.prepare().await
    }

    async fn application(&self) -> Result<ApplicationFacts, StoreError> {
        self.inner.application().await
    }

    async fn poll(&self) -> Result<StorePoll, StoreError> {
        let mut look = self.inner.poll().await?;
        let beats: u64 = look.workers.iter().map(|worker| worker.counter).sum();
        match self.flaw {
            Flaw::KeepsTheVersion => look.version = Some(1),
            Flaw::MovesTheVersionWithBeats => look.version = look.version.map(|v| v + beats),
            _ => {}
        }
        Ok(look)
    }

    async fn list(&self, stream: &StreamName) -> Result<LeaseListing, StoreError> {
        self.inner.list(stream).await
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        if self.flaw == Flaw::ShowsOldRows {
            return Ok(self.before.lock().expect("nobody panics with it").lease(key).cloned());
        }
        self.inner.get(key).await
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<WorkerRow>, StoreError> {
        self.inner.worker(id).await
    }

    async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        *self.before.lock().expect("nobody panics with it") = self.inner.snapshot();
        let outcome = self.inner.write(&self.doctor(write)).await?;
        Ok(match (self.flaw, outcome, write) {
            (
                Flaw::SaysTheWrongWhy,
                WriteOutcome::Refused { why: WriteRefusal::TermMoved, now },
                _,
            ) => WriteOutcome::Refused { why: WriteRefusal::NotOwner, now },
            (
                Flaw::CreatesOverARow,
                WriteOutcome::Refused { why: WriteRefusal::Exists, now: Some(now) },
                Write::Lease { .. },
            ) => WriteOutcome::Done(now),
            (
                Flaw::LetsTwoWin,
                WriteOutcome::Refused { now: Some(now), .. },
                Write::Lease { key, change: LeaseChange::Take { .. }, nonce },
            ) if key.stream.as_str() == "contest" && nonce.0 % 16 == 0 => WriteOutcome::Done(now),
            (_, outcome, _) => outcome,
        })
    }
}

async fn passes(layout: Layout, flaw: Flaw) -> bool {
    let mut suite = tokio::task::JoinSet::new();
    suite.spawn(conformance::run(FlawedStore::new(layout, flaw)));
    suite.join_next().await.expect("there is one task").is_ok()
}

#[tokio::test]
async fn a_store_that_is_a_little_wrong_does_not_pass() {
    for layout in [Layout::Native, Layout::Kcl] {
        assert!(passes(layout, Flaw::None).await, "{layout:?}");
        for flaw in [
            Flaw::TakesUnderAnyTerm,
            Flaw::ReleasesForAnyOwner,
            Flaw::ForgetsPendingCheckpoints,
            Flaw::CreatesOverARow,
            Flaw::ShowsOldRows,
            Flaw::SaysTheWrongWhy,
            Flaw::LetsTwoWin,
        ] {
            assert!(!passes(layout, flaw).await, "{layout:?}: {flaw:?} passed");
        }
    }
    for flaw in [
        Flaw::ReplacesAnyCheckpoint,
        Flaw::FencesAtAnyCounter,
        Flaw::ForgetsNonces,
        Flaw::ForgetsLeaseTimes,
        Flaw::KeepsTheVersion,
        Flaw::MovesTheVersionWithBeats,
    ] {
        assert!(!passes(Layout::Native, flaw).await, "{flaw:?} passed");
    }
}
