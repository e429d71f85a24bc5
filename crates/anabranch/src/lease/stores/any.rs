//! A lease store of whichever kind: one type for programs that learn at run time where leases are.

use crate::lease::store::{LeaseStore, StoreError, StorePoll};
use crate::lease::{DynamoDbStore, MemoryStore, PostgresStore, SqliteStore};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, KclProbe, Layout, Lease, LeaseKey, LeaseListing, StoredRow, WorkerId,
    WorkerRow, Write, WriteOutcome,
};
use anabranch_model::position::StartPosition;
use std::collections::BTreeMap;

/// A lease store of whichever kind, so that a consumer over it is compiled once. Clones share one.
///
/// [`StoreAddress::open`](crate::lease::StoreAddress::open) makes one from an address; a store that needs
/// settings of its own becomes one with `into()`.
#[derive(Clone, Debug)]
pub enum AnyStore {
    /// In this process.
    Memory(MemoryStore),
    /// In a file.
    Sqlite(SqliteStore),
    /// In a database.
    Postgres(Box<PostgresStore>),
    /// In a DynamoDB table, in our layout or KCL's.
    DynamoDb(Box<DynamoDbStore>),
}

impl AnyStore {
    /// Changes the settings of a DynamoDB table, where it is one.
    #[must_use]
    pub fn map_dynamodb(self, change: impl FnOnce(DynamoDbStore) -> DynamoDbStore) -> Self {
        match self {
            Self::DynamoDb(store) => change(*store).into(),
            other => other,
        }
    }
}

impl From<MemoryStore> for AnyStore {
    fn from(store: MemoryStore) -> Self {
        Self::Memory(store)
    }
}

impl From<SqliteStore> for AnyStore {
    fn from(store: SqliteStore) -> Self {
        Self::Sqlite(store)
    }
}

impl From<PostgresStore> for AnyStore {
    fn from(store: PostgresStore) -> Self {
        Self::Postgres(Box::new(store))
    }
}

impl From<DynamoDbStore> for AnyStore {
    fn from(store: DynamoDbStore) -> Self {
        Self::DynamoDb(Box::new(store))
    }
}

/// Does the same with whichever store it is.
macro_rules! on_any {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            AnyStore::Memory($store) => $call,
            AnyStore::Sqlite($store) => $call,
            AnyStore::Postgres($store) => $call,
            AnyStore::DynamoDb($store) => $call,
        }
    };
}

/// Waits for whichever store it is. What a database takes to be asked is large, and would stand in
/// each task that may ever ask one; so it is made when it is needed.
macro_rules! await_any {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            AnyStore::Memory($store) => $call.await,
            AnyStore::Sqlite($store) => Box::pin($call).await,
            AnyStore::Postgres($store) => Box::pin($call).await,
            AnyStore::DynamoDb($store) => Box::pin($call).await,
        }
    };
}

/// Everything is passed on, what the trait has defaults for too: a default would stand in for what
/// the store itself does.
impl LeaseStore for AnyStore {
    fn layout(&self) -> Layout {
        on_any!(self, store => store.layout())
    }

    fn poll_interval(&self) -> u64 {
        on_any!(self, store => store.poll_interval())
    }

    fn note_start(&self, stream: &StreamName, start: StartPosition) {
        on_any!(self, store => store.note_start(stream, start));
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        await_any!(self, store => store.prepare())
    }

    async fn probe(&self) -> Result<KclProbe, StoreError> {
        await_any!(self, store => store.probe())
    }

    async fn application(&self) -> Result<ApplicationFacts, StoreError> {
        await_any!(self, store => store.application())
    }

    async fn poll(&self) -> Result<StorePoll, StoreError> {
        await_any!(self, store => store.poll())
    }

    async fn list(&self, stream: &StreamName) -> Result<LeaseListing, StoreError> {
        await_any!(self, store => store.list(stream))
    }

    async fn list_recent(
        &self,
        streams: &[StreamName],
    ) -> Result<BTreeMap<StreamName, LeaseListing>, StoreError> {
        await_any!(self, store => store.list_recent(streams))
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        await_any!(self, store => store.get(key))
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<WorkerRow>, StoreError> {
        await_any!(self, store => store.worker(id))
    }

    async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        await_any!(self, store => store.write(write))
    }

    async fn wait_for_change(&self) {
        await_any!(self, store => store.wait_for_change());
    }

    async fn read_back(&self, write: &Write) -> Result<StoredRow, StoreError> {
        await_any!(self, store => store.read_back(write))
    }
}
