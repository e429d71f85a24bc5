//! Leases in PostgreSQL, for workers on many machines.

use super::sql::{CHANNEL, POSTGRES, SqlExecutor, SqlStore, StoreTimeouts, TableNames};
use crate::lease::store::{LeaseStore, StoreError, StorePoll};
use crate::lease::transactional::{StoreTransaction, TransactionCheckpoint, TransactionalStore};
use crate::postgres::listen::ChangeListener;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    ApplicationFacts, Checkpoint, Layout, Lease, LeaseKey, LeaseListing, LeaseToken, Nonce,
    WorkerId, WorkerRow, Write, WriteOutcome,
};
use sqlx::postgres::PgConnectOptions;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Default number of connections: a heartbeat, a poll, a checkpoint and a take at the same time.
const CONNECTIONS: usize = 4;

/// Leases in PostgreSQL. Clones share their connections.
///
/// The tables are in a schema of their own, `anabranch` by default, which holds any number of
/// applications and streams. Besides its pool, a store keeps one connection on which it listens for
/// changes, opened on first use.
///
/// All workers must use the same primary server. After a failover to a standby that lagged behind,
/// leases are as the standby had them: use synchronous replication. A pooler in transaction mode
/// needs no setting. Notifications don't pass through it, which the store logs once; changes are
/// then seen at the next poll.
///
/// ```no_run
/// use anabranch::lease::{LeaseStore, PostgresStore};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let store = PostgresStore::connect("postgres://me@db.example.com/shop", "billing")?;
/// store.prepare().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    /// Settings that the store was created from.
    settings: PostgresSettings,
    inner: Arc<SqlStore>,
    /// Listens for changes. Each clone tracks separately which changes it has seen.
    listener: ChangeListener,
}

#[derive(Clone)]
struct PostgresSettings {
    options: PgConnectOptions,
    application: String,
    schema: String,
    connections: usize,
    patience: StoreTimeouts,
}

impl PostgresStore {
    /// Opens the leases of `application` in the database at `url`,
    /// `postgres://user:password@host/name`.
    ///
    /// The variables of `libpq` (`PGPASSWORD`, `PGSSLMODE` and so on) provide what the URL leaves
    /// out. Nothing is sent before the first call. [`LeaseStore::prepare`] creates the tables.
    pub fn connect(url: &str, application: impl Into<String>) -> Result<Self, StoreError> {
        let options = crate::postgres::url::parse(url).map_err(|why| StoreError::Unusable {
            store: "PostgreSQL".to_owned(),
            detail: format!("the URL is malformed: {why}"),
        })?;
        Self::connect_with(options, application)
    }

    /// Does the same as [`connect`](Self::connect) with connection options instead of a URL.
    pub fn connect_with(
        options: PgConnectOptions,
        application: impl Into<String>,
    ) -> Result<Self, StoreError> {
        Self::of(PostgresSettings {
            options,
            application: application.into(),
            schema: "anabranch".to_owned(),
            connections: CONNECTIONS,
            patience: StoreTimeouts::default(),
        })
    }

    /// Sets the schema of the tables, which is created if it is missing. Default: `anabranch`.
    pub fn with_schema(self, schema: impl Into<String>) -> Result<Self, StoreError> {
        Self::of(PostgresSettings { schema: schema.into(), ..self.settings })
    }

    /// Sets the maximum number of concurrent connections, at least 1. Default: 4.
    pub fn with_connections(self, connections: usize) -> Result<Self, StoreError> {
        Self::of(PostgresSettings { connections: connections.max(1), ..self.settings })
    }

    /// Sets the time limit of a call, which applies once more to the answer to its `COMMIT`. Keep
    /// it well below the lease time. Default: 2 s.
    pub fn with_call_timeout(mut self, call: Duration) -> Result<Self, StoreError> {
        self.settings.patience.call = call.max(Duration::from_millis(1));
        Self::of(self.settings)
    }

    /// Sets the time that a write waits for a row that another transaction has locked. Default: 0.5
    /// s. A transaction of the user's own can hold such a lock ([`PostgresStore::checkpoint_in`]),
    /// and a take must not wait for it.
    pub fn with_lock_timeout(mut self, lock: Duration) -> Result<Self, StoreError> {
        // 0 would mean no limit.
        self.settings.patience.lock = lock.max(Duration::from_millis(1));
        Self::of(self.settings)
    }

    /// Moves the checkpoint of a lease inside a transaction of the user's own, in the same
    /// database, so that it and the effects of the records are stored together or not at all.
    ///
    /// From here on, PostgreSQL ends the transaction if it stays idle for longer than the call
    /// timeout. If `COMMIT` gets no answer, the lease shows whether the transaction was stored: its
    /// row then holds `nonce` and `to`.
    pub async fn checkpoint_in(
        &self,
        transaction: &mut sqlx::Transaction<'_, sqlx::Postgres>,
        hold: &LeaseToken,
        replaces: &Checkpoint,
        to: &Checkpoint,
        nonce: Nonce,
    ) -> Result<TransactionCheckpoint, StoreError> {
        let mut wire = SqlExecutor::Postgres(&mut *transaction);
        self.inner.checkpoint_in(&mut wire, hold, replaces, to, nonce).await
    }

    fn of(settings: PostgresSettings) -> Result<Self, StoreError> {
        let place = crate::postgres::url::label(&settings.options);
        let label = format!("{place} (schema {})", settings.schema);
        if let Some(detail) = settings.problem() {
            return Err(StoreError::Unusable { store: label, detail });
        }
        let address = crate::postgres::url::quiet(&settings.options);
        let inner = Arc::new(SqlStore::new(
            settings.application.clone(),
            label,
            &POSTGRES,
            TableNames::in_schema(&settings.schema),
            super::sql::DatabaseAddress::Postgres(Box::new(address.clone())),
            (settings.connections, settings.connections),
            settings.patience,
        ));
        let listener =
            ChangeListener::new(address, CHANNEL, inner.payload(), settings.patience.call);
        Ok(Self { settings, inner, listener })
    }
}

impl PostgresSettings {
    fn problem(&self) -> Option<String> {
        let schema = &self.schema;
        if schema.is_empty() || schema.len() > 63 || schema.contains('\0') {
            return Some(format!(
                "{schema:?} is not a valid schema name: it must have 1 to 63 \
                                 bytes, none of them 0"
            ));
        }
        super::sql::problem_with_application(&self.application)
    }
}

impl TransactionalStore for PostgresStore {}

impl<'t> StoreTransaction<sqlx::Transaction<'t, sqlx::Postgres>> for PostgresStore {
    fn checkpoint_in(
        &self,
        transaction: &mut sqlx::Transaction<'t, sqlx::Postgres>,
        hold: &LeaseToken,
        replaces: &Checkpoint,
        to: &Checkpoint,
        nonce: Nonce,
    ) -> impl Future<Output = Result<TransactionCheckpoint, StoreError>> + Send {
        Self::checkpoint_in(self, transaction, hold, replaces, to, nonce)
    }
}

impl LeaseStore for PostgresStore {
    fn layout(&self) -> Layout {
        Layout::Native
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.inner.prepare().await
    }

    async fn application(&self) -> Result<ApplicationFacts, StoreError> {
        self.inner.application().await
    }

    async fn poll(&self) -> Result<StorePoll, StoreError> {
        self.inner.look().await
    }

    async fn list(&self, stream: &StreamName) -> Result<LeaseListing, StoreError> {
        self.inner.list(stream).await
    }

    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        self.inner.get(key).await
    }

    async fn worker(&self, id: &WorkerId) -> Result<Option<WorkerRow>, StoreError> {
        self.inner.worker(id).await
    }

    async fn write(&self, write: &Write) -> Result<WriteOutcome, StoreError> {
        self.inner.write(write).await
    }

    async fn wait_for_change(&self) {
        self.listener.changed().await;
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresStore({:?})", self.inner)
    }
}
