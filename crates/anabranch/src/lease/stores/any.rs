//! A lease store of any kind: one type for programs that choose the store at run time.

use crate::lease::store::{LeaseStore, StoreError, StorePoll};
use crate::lease::{DynamoDbStore, MemoryStore, PostgresStore, SqliteStore};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, KclProbe, Layout, Lease, LeaseKey, LeaseListing, StoredRow, WorkerId,
    WorkerRow, Write, WriteOutcome,
};
use anabranch_model::position::StartPosition;
use std::collections::BTreeMap;

/// A lease store of any kind, so that a consumer over it is compiled once. Clones share one store.
///
/// [`StoreAddress::open`](crate::lease::StoreAddress::open) creates one from an address. A store
/// that needs settings of its own is converted with `into()`.
#[derive(Clone, Debug)]
pub enum AnyStore {
    /// In this process.
    Memory(MemoryStore),
    /// In a file.
    Sqlite(SqliteStore),
    /// In a database.
    Postgres(Box<PostgresStore>),
    /// In a DynamoDB table, in the native layout or KCL's.
    DynamoDb(Box<DynamoDbStore>),
}

impl AnyStore {
    /// Changes the settings of a DynamoDB store. Returns any other store unchanged.
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

/// Evaluates a call on the store, whatever its kind.
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

/// Awaits a call on the store, whatever its kind. The futures of the databases are large and would
/// enlarge every task that may call one, so they are boxed.
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

/// Forwards every method, including those with defaults: a default would replace the store's own
/// implementation.
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
