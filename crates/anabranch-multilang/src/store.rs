//! The lease store that the properties choose.

use crate::config::{Config, LeaseStoreChoice};
use crate::tell;
use anabranch::lease::{
    DynamoDbStore, LeaseStore, Look, MemoryStore, PostgresStore, SqliteStore, StoreError,
};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    Application, Layout, Lease, LeaseKey, Outcome, Survey, Worker, WorkerId, Write,
};
use aws_config::SdkConfig;

/// A lease store of any kind: one type, so that the consumer is compiled once.
#[expect(clippy::large_enum_variant, reason = "a process has one")]
pub(crate) enum Store {
    /// A DynamoDB table, in KCL's layout or ours.
    DynamoDb(DynamoDbStore),
    /// PostgreSQL.
    Postgres(PostgresStore),
    /// A SQLite file.
    Sqlite(SqliteStore),
    /// This process alone.
    Memory(MemoryStore),
}

impl Store {
    /// Opens the store that `config` chooses. `dynamodb` is there where it is a DynamoDB table.
    pub(crate) fn open(config: &Config, dynamodb: Option<&SdkConfig>) -> Result<Self, StoreError> {
        let application = &config.application;
        Ok(match (&config.lease_store, dynamodb) {
            (LeaseStoreChoice::Kcl { table }, Some(dynamodb)) => {
                let store = DynamoDbStore::kcl(dynamodb, table).with_start(config.start);
                Self::DynamoDb(table_settings(store, config).with_events(tell::to_log()))
            }
            (LeaseStoreChoice::DynamoDb { table }, Some(dynamodb)) => {
                Self::DynamoDb(table_settings(DynamoDbStore::native(dynamodb, table), config))
            }
            (LeaseStoreChoice::Postgres { url }, _) => {
                Self::Postgres(PostgresStore::connect(url, application)?)
            }
            (LeaseStoreChoice::Sqlite { path }, _) => {
                Self::Sqlite(SqliteStore::open(path, application)?)
            }
            _ => Self::Memory(MemoryStore::new(Layout::Native)),
        })
    }
}

fn table_settings(mut store: DynamoDbStore, config: &Config) -> DynamoDbStore {
    if config.deletion_protection {
        store = store.with_deletion_protection();
    }
    if config.point_in_time_recovery {
        store = store.with_point_in_time_recovery();
    }
    store
}

/// Does the same with whichever store it is.
macro_rules! each {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            Store::DynamoDb($store) => $call,
            Store::Postgres($store) => $call,
            Store::Sqlite($store) => $call,
            Store::Memory($store) => $call,
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
