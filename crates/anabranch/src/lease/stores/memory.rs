//! Lease store in memory: for one process, for tests, and as the reference for every other store.

use crate::lease::store::{LeaseStore, StoreError, StorePoll};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, Layout, Lease, LeaseKey, LeaseListing, LeaseTable, WorkerId, WorkerRow,
    Write, WriteOutcome,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A lease store in memory. Clones share one table; it ends with the process.
///
/// For one worker, or for tests. A fleet needs a store that its processes share, such as
/// `PostgresStore` or `DynamoDbStore`.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    /// Rules and row format.
    layout: Layout,
    /// All rows of the application.
    table: Arc<Mutex<LeaseTable>>,
}

impl MemoryStore {
    /// Creates an empty store in Anabranch's own layout.
    #[expect(clippy::new_without_default, reason = "a default store would be easy to overlook")]
    pub fn new() -> Self {
        Self::with_layout(Layout::Native)
    }

    /// Creates an empty store in this layout.
    pub fn with_layout(layout: Layout) -> Self {
        Self { layout, table: Arc::new(Mutex::new(LeaseTable::new(layout))) }
    }

    /// Returns a copy of all rows, for tests and checkers.
    pub fn snapshot(&self) -> LeaseTable {
        self.table().clone()
    }

    fn table(&self) -> MutexGuard<'_, LeaseTable> {
        // A write is applied whole or not at all, so a panic leaves no half of one.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeaseStore for MemoryStore {
    fn layout(&self) -> Layout {
        self.layout
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn application(&self) -> Result<ApplicationFacts, StoreError> {
        Ok(self.table().application().clone())
    }

    async fn poll(&self) -> Result<StorePoll, StoreError> {
        let table = self.table();
        let native = self.layout == Layout::Native;
        let version = native.then_some(table.application().version);
        Ok(StorePoll {
            version,
            workers: table.workers().cloned().collect(),
            unreadable: Vec::new(),
        })
    }

    async fn list(&self, stream: &StreamName) -> Result<LeaseListing, StoreError> {
        let rows: Vec<_> = self.table().leases(stream).cloned().collect();
        Ok(rows.into())
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        Ok(self.table().lease(key).cloned())
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<WorkerRow>, StoreError> {
        Ok(self.table().worker(id).cloned())
    }

    async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        Ok(self.table().apply(write))
    }
}
