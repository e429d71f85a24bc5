//! A memory store that may break one of its rules.

use super::LeaseFlaw;
use crate::faults::store::at_once;
use anabranch::lease::{LeaseStore, MemoryStore, StoreError, StorePoll};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, Checkpoint, Layout, Lease, LeaseChange, LeaseKey, LeaseListing, StoredRow,
    WorkerChange, WorkerId, WorkerRow, Write, WriteOutcome, WriteRefusal,
};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A memory store that may break one of its rules.
#[derive(Debug)]
pub struct FlawedRulesStore {
    /// The rows.
    inner: MemoryStore,
    /// The broken rule.
    flaw: LeaseFlaw,
    /// Checkpoints that were stored without regard to the ones they replaced. They take precedence
    /// over those of the rows.
    checkpoints: Mutex<BTreeMap<LeaseKey, Checkpoint>>,
}

impl FlawedRulesStore {
    /// Wraps a store with one flaw or none.
    pub fn new(inner: MemoryStore, flaw: LeaseFlaw) -> Self {
        Self { inner, flaw, checkpoints: Mutex::default() }
    }

    /// Returns all leases of a stream as the store shows them.
    pub fn leases(&self, stream: &StreamName) -> Vec<Lease> {
        self.inner.snapshot().leases(stream).map(|lease| self.shown(lease.clone())).collect()
    }

    fn apply(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        let mut write = write.clone();
        if let Write::Lease { key, change, .. } = &mut write
            && let Some(row) = self.inner.snapshot().lease(key)
        {
            match (self.flaw, change) {
                (LeaseFlaw::SkipsTermCheck, LeaseChange::Take { term, .. }) => *term = row.term,
                // In KCL's layout only the counter fences a checkpoint.
                (LeaseFlaw::SkipsTermCheck, LeaseChange::Checkpoint { term, .. })
                    if self.layout() == Layout::Kcl =>
                {
                    *term = row.term;
                }
                (
                    LeaseFlaw::CheckpointSkipsWhatItReplaces,
                    LeaseChange::Checkpoint { owner, term, to, .. },
                ) => return Ok(self.store_any(row, owner, *term, to)),
                (LeaseFlaw::CheckpointSkipsWhatItReplaces, LeaseChange::End { replaces, .. }) => {
                    *replaces = row.checkpoint.clone();
                    self.checkpoints().remove(key);
                }
                _ => {}
            }
        }
        // As if the fence had read the counter just before it was sent.
        if let Write::Worker { id, change: WorkerChange::Fence { counter }, .. } = &mut write
            && self.flaw == LeaseFlaw::FencesNewerCounter
            && let Some(row) = self.inner.snapshot().worker(id)
        {
            *counter = row.counter;
        }
        let outcome = at_once(self.inner.write(&write))?;
        Ok(match outcome {
            WriteOutcome::Done(StoredRow::Lease(row)) => {
                WriteOutcome::Done(StoredRow::Lease(Box::new(self.shown(*row))))
            }
            WriteOutcome::Refused { why, now: Some(StoredRow::Lease(row)) } => {
                let now = Some(StoredRow::Lease(Box::new(self.shown(*row))));
                WriteOutcome::Refused { why, now }
            }
            other => other,
        })
    }

    /// Stores a checkpoint of the owner, whatever it replaces.
    fn store_any(&self, row: &Lease, owner: &WorkerId, term: u64, to: &Checkpoint) -> WriteOutcome {
        if row.owner.as_ref() != Some(owner) || row.term != term {
            let now = Some(StoredRow::Lease(Box::new(self.shown(row.clone()))));
            return WriteOutcome::Refused { why: WriteRefusal::TermMoved, now };
        }
        self.checkpoints().insert(row.key.clone(), to.clone());
        WriteOutcome::Done(StoredRow::Lease(Box::new(self.shown(row.clone()))))
    }

    fn shown(&self, mut row: Lease) -> Lease {
        if let Some(checkpoint) = self.checkpoints().get(&row.key)
            && !row.is_ended()
        {
            row.checkpoint = checkpoint.clone();
        }
        row
    }

    fn checkpoints(&self) -> MutexGuard<'_, BTreeMap<LeaseKey, Checkpoint>> {
        // Each change is one assignment, so a panic leaves no partial change.
        self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeaseStore for FlawedRulesStore {
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
        self.inner.poll().await
    }

    async fn list(&self, stream: &StreamName) -> Result<LeaseListing, StoreError> {
        Ok(self.leases(stream).into())
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        Ok(self.inner.get(key).await?.map(|row| self.shown(row)))
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<WorkerRow>, StoreError> {
        self.inner.worker(id).await
    }

    async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        self.apply(write)
    }
}
