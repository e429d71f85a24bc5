//! The lease rows of a fleet in memory. Some may come from a KCL version that stored no hash range.

use anabranch::lease::{LeaseStore, MemoryStore, StoreError, StorePoll};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, Layout, Lease, LeaseChange, LeaseKey, LeaseListing, LeaseTable, NewLease,
    Nonce, StoredRow, WorkerId, WorkerRow, Write, WriteOutcome,
};
use anabranch_model::lineage::Shard;
use anabranch_model::position::Position;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Lease rows in memory. Clones share one table.
#[derive(Clone, Debug)]
pub struct LeaseRows {
    /// Rows, each with its hash range.
    inner: MemoryStore,
    /// Rows that show no hash range until one is stored.
    rangeless: Arc<Mutex<BTreeSet<LeaseKey>>>,
    /// Additional effects of writes when they are applied, by nonce.
    effects: Arc<Mutex<BTreeMap<u64, WriteEffect>>>,
}

/// An effect that runs each time that a write is applied.
#[derive(Clone)]
pub struct WriteEffect(Arc<dyn Fn() + Send + Sync>);

impl WriteEffect {
    /// Wraps a function as an effect.
    pub fn new(happens: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(happens))
    }

    /// Runs the effect.
    pub(crate) fn apply(&self) {
        (self.0)();
    }
}

impl fmt::Debug for WriteEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Effect")
    }
}

impl LeaseRows {
    /// Creates an empty table.
    pub fn new(layout: Layout) -> Self {
        Self {
            inner: MemoryStore::with_layout(layout),
            rangeless: Arc::default(),
            effects: Arc::default(),
        }
    }

    /// Returns a write that creates a row as KCL did before it stored hash ranges.
    pub fn add_old(&self, stream: &StreamName, shard: &Shard) -> Write {
        let key = LeaseKey { stream: stream.clone(), shard: shard.id.clone() };
        let new = NewLease {
            shard: shard.id.clone(),
            parents: shard.parents().cloned().collect(),
            range: shard.range,
            checkpoint: Position::TrimHorizon,
        };
        self.rangeless().insert(key.clone());
        Write::lease(&key, LeaseChange::Create(Box::new(new)), Nonce(0))
    }

    /// Returns all current rows of a stream.
    pub fn leases(&self, stream: &StreamName) -> Vec<Lease> {
        let table = self.inner.snapshot();
        table.leases(stream).map(|row| self.shown(row.clone())).collect()
    }

    /// Returns the current table, with all hash ranges.
    pub fn snapshot(&self) -> LeaseTable {
        self.inner.snapshot()
    }

    /// Attaches an effect to a write of a lease row.
    pub fn attach(&self, write: &Write, effect: WriteEffect) {
        if let Write::Lease { nonce, .. } = write {
            self.effects().insert(nonce.0, effect);
        }
    }

    /// Drops all effects. They hold the fleet whose rows these are, so without this call neither
    /// is ever freed.
    pub fn drop_effects(&self) {
        self.effects().clear();
    }

    fn effects(&self) -> MutexGuard<'_, BTreeMap<u64, WriteEffect>> {
        // Each change is one insertion, so a panic leaves no partial change.
        self.effects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self, mut row: Lease) -> Lease {
        if self.rangeless().contains(&row.key) {
            row.range = None;
        }
        row
    }

    fn stored(&self, stored: StoredRow) -> StoredRow {
        match stored {
            StoredRow::Lease(row) => StoredRow::Lease(Box::new(self.shown(*row))),
            other => other,
        }
    }

    fn rangeless(&self) -> MutexGuard<'_, BTreeSet<LeaseKey>> {
        // Each change is one insertion or removal, so a panic leaves no partial change.
        self.rangeless.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeaseStore for LeaseRows {
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
        let rows = self.inner.list(stream).await?;
        Ok(rows.map(|row| self.shown(row)))
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        Ok(self.inner.get(key).await?.map(|row| self.shown(row)))
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<WorkerRow>, StoreError> {
        self.inner.worker(id).await
    }

    async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        let outcome = self.inner.write(write).await?;
        if let Write::Lease { key, change, nonce } = write
            && outcome.is_done()
        {
            if matches!(change, LeaseChange::NoteRange(_) | LeaseChange::Delete { .. }) {
                self.rangeless().remove(key);
            }
            let effect = self.effects().get(&nonce.0).cloned();
            if let Some(effect) = effect {
                effect.apply();
            }
        }
        Ok(match outcome {
            WriteOutcome::Done(stored) => WriteOutcome::Done(self.stored(stored)),
            WriteOutcome::Refused { why, now } => {
                WriteOutcome::Refused { why, now: now.map(|now| self.stored(now)) }
            }
            WriteOutcome::Unknown => WriteOutcome::Unknown,
        })
    }
}
