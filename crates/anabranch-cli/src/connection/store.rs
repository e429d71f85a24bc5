//! The lease store that an address names.

use super::{Connection, LeaseAddress, trouble};
use crate::failure::Failure;
use anabranch::lease::{
    DynamoDbStore, LeaseStore, Look, MemoryStore, PostgresStore, SqliteStore, StoreError,
};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    Application, Layout, Lease, LeaseKey, Outcome, Survey, Worker, WorkerId, Write,
};
use anabranch_model::position::StartPosition;

/// A lease store of any kind. Clones share one.
#[derive(Clone)]
pub(crate) enum Store {
    /// In memory.
    Memory(MemoryStore),
    /// In a file.
    Sqlite(SqliteStore),
    /// In a database.
    Postgres(Box<PostgresStore>),
    /// In a DynamoDB table, in our layout or KCL's.
    DynamoDb(Box<DynamoDbStore>),
}

impl Connection {
    /// The store at an address. Nothing is sent yet, and nothing is made.
    pub(crate) async fn store(
        &self,
        address: &LeaseAddress,
        application: &str,
    ) -> Result<Store, Failure> {
        let store = match address {
            LeaseAddress::Memory => Ok(Store::Memory(MemoryStore::new(Layout::Native))),
            LeaseAddress::Sqlite(path) => SqliteStore::open(path, application).map(Store::Sqlite),
            LeaseAddress::Postgres(url) => {
                let store = PostgresStore::connect(url, application);
                store.map(|store| Store::Postgres(Box::new(store)))
            }
            LeaseAddress::DynamoDb(table) => {
                let store = DynamoDbStore::native(&self.aws().await?.config, table);
                Ok(Store::DynamoDb(Box::new(store)))
            }
            LeaseAddress::Kcl(table) => {
                let table = table.as_deref().unwrap_or(application);
                let store = DynamoDbStore::kcl(&self.aws().await?.config, table);
                Ok(Store::DynamoDb(Box::new(store)))
            }
        };
        store.map_err(|error| trouble::of_store(&error))
    }

    /// The store at an address where something is to be read, so nothing may be made there.
    pub(crate) async fn existing_store(
        &self,
        address: &LeaseAddress,
        application: &str,
    ) -> Result<Store, Failure> {
        match address {
            LeaseAddress::Memory => Err(Failure::usage(
                "leases in memory belong to the process that made them: give the store that the \
                 application uses with --leases",
            )),
            LeaseAddress::Sqlite(path) if !path.exists() => {
                Err(Failure::usage(format!("there is no file {}", path.display())))
            }
            // A row may say AT_TIMESTAMP and leave the time to the workers; any time will do to
            // look at it.
            address => {
                let store = self.store(address, application).await?;
                Ok(store.starting_at(StartPosition::AtTimestamp(0)))
            }
        }
    }
}

impl Store {
    /// Tells KCL's layout where the application starts, which its rows don't keep.
    pub(crate) fn starting_at(self, start: StartPosition) -> Self {
        match self {
            Self::DynamoDb(store) => Self::DynamoDb(Box::new(store.with_start(start))),
            other => other,
        }
    }

    /// A failed call, in words.
    pub(crate) fn trouble(error: &StoreError) -> Failure {
        trouble::of_store(error)
    }
}

/// Does the same with whichever store it is.
macro_rules! each {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            Store::Memory($store) => $call,
            Store::Sqlite($store) => $call,
            Store::Postgres($store) => $call,
            Store::DynamoDb($store) => $call,
        }
    };
}

impl LeaseStore for Store {
    fn layout(&self) -> Layout {
        each!(self, store => store.layout())
    }

    fn look_ms(&self) -> u64 {
        each!(self, store => store.look_ms())
    }

    fn note_start(&self, stream: &StreamName, start: StartPosition) {
        each!(self, store => store.note_start(stream, start));
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        each!(self, store => store.prepare().await)
    }

    async fn survey(&self) -> Result<Survey, StoreError> {
        each!(self, store => store.survey().await)
    }

    async fn application(&self) -> Result<Application, StoreError> {
        each!(self, store => store.application().await)
    }

    async fn look(&self) -> Result<Look, StoreError> {
        each!(self, store => store.look().await)
    }

    async fn list(&self, stream: &StreamName) -> Result<Vec<Lease>, StoreError> {
        each!(self, store => store.list(stream).await)
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        each!(self, store => store.get(key).await)
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<Worker>, StoreError> {
        each!(self, store => store.worker(id).await)
    }

    async fn write(&self, write: &Write) -> Result<Outcome, StoreError> {
        each!(self, store => store.write(write).await)
    }

    async fn changed(&self) {
        each!(self, store => store.changed().await);
    }
}
