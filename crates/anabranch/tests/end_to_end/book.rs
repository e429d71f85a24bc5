//! A table of effects beside the leases, in PostgreSQL or in SQLite.

use crate::postgres_server::Server;
use anabranch::consumer::HandlerError;
use anabranch::lease::{PostgresStore, SqliteStore, StoreTransaction};
use sqlx::postgres::PgPool;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

const APPLICATION: &str = "exactly-once";
const EFFECT: &str = "INSERT INTO effect (key, number) VALUES ($1, $2)";
const EFFECTS: &str = "SELECT key, number FROM effect ORDER BY id";

/// A transaction of an effects table.
pub(crate) type EffectsTransaction<B> = sqlx::Transaction<'static, <B as EffectsTable>::Database>;

/// A table of effects beside the leases.
pub(crate) trait EffectsTable: Clone + Send + Sync + 'static {
    type Database: sqlx::Database;
    type Store: StoreTransaction<EffectsTransaction<Self>>;

    fn store(&self) -> Self::Store;

    fn begin(&self) -> impl Future<Output = Result<EffectsTransaction<Self>, HandlerError>> + Send;

    fn note(
        entry: &mut EffectsTransaction<Self>,
        key: &str,
        number: i64,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Returns every effect, in the order of the rows.
    fn effects(&self) -> impl Future<Output = Vec<(String, i64)>> + Send;

    /// Waits until there are `count` effects.
    async fn until(&self, count: usize) {
        for _ in 0..600 {
            if self.effects().await.len() >= count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{} effects of {count}", self.effects().await.len());
    }

    /// Asserts that every record of `keys` keys has had its effect once, and in order for each key.
    async fn check(&self, keys: usize, each: usize) {
        let mut next: BTreeMap<String, i64> = BTreeMap::new();
        for (key, number) in self.effects().await {
            let expected = next.entry(key.clone()).or_default();
            assert_eq!(number, *expected, "{key}: the effect of {number}, not of {expected}");
            *expected += 1;
        }
        assert_eq!(next.len(), keys);
        assert!(next.values().all(|count| *count == i64::try_from(each).unwrap()), "{next:?}");
    }
}

/// An effects table in PostgreSQL.
#[derive(Clone)]
pub(crate) struct PostgresEffects {
    url: String,
    pool: PgPool,
}

impl PostgresEffects {
    /// Creates a new one.
    pub(crate) async fn new(server: &Server) -> Self {
        let book = Self::open(&server.fresh_database()).await;
        let table = "CREATE TABLE effect (id bigserial, key text, number bigint)";
        sqlx::query(table).execute(&book.pool).await.unwrap();
        book
    }

    /// Opens an existing one.
    pub(crate) async fn open(url: &str) -> Self {
        Self { url: url.to_owned(), pool: PgPool::connect(url).await.unwrap() }
    }

    pub(crate) fn address(&self) -> String {
        self.url.clone()
    }
}

impl EffectsTable for PostgresEffects {
    type Database = sqlx::Postgres;
    type Store = PostgresStore;

    fn store(&self) -> PostgresStore {
        PostgresStore::connect(&self.url, APPLICATION).unwrap()
    }

    async fn begin(&self) -> Result<EffectsTransaction<Self>, HandlerError> {
        Ok(self.pool.begin().await?)
    }

    async fn note(
        entry: &mut EffectsTransaction<Self>,
        key: &str,
        number: i64,
    ) -> Result<(), HandlerError> {
        sqlx::query(EFFECT).bind(key).bind(number).execute(&mut **entry).await?;
        Ok(())
    }

    async fn effects(&self) -> Vec<(String, i64)> {
        sqlx::query_as(EFFECTS).fetch_all(&self.pool).await.unwrap()
    }
}

/// An effects table in a SQLite file.
#[derive(Clone)]
pub(crate) struct SqliteEffects {
    path: String,
    pool: SqlitePool,
}

impl SqliteEffects {
    /// Creates a new one.
    pub(crate) async fn new(folder: &Path) -> Self {
        let book = Self::open(folder.join("leases.db").to_str().unwrap()).await;
        let table = "CREATE TABLE effect (id INTEGER PRIMARY KEY, key TEXT, number INTEGER)";
        sqlx::query(table).execute(&book.pool).await.unwrap();
        book
    }

    /// Opens an existing one.
    pub(crate) async fn open(path: &str) -> Self {
        let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
        let pool = SqlitePool::connect_with(options.busy_timeout(Duration::from_secs(10)));
        Self { path: path.to_owned(), pool: pool.await.unwrap() }
    }

    pub(crate) fn address(&self) -> String {
        self.path.clone()
    }
}

impl EffectsTable for SqliteEffects {
    type Database = sqlx::Sqlite;
    type Store = SqliteStore;

    fn store(&self) -> SqliteStore {
        SqliteStore::open(&self.path, APPLICATION).unwrap()
    }

    async fn begin(&self) -> Result<EffectsTransaction<Self>, HandlerError> {
        // A transaction that reads first cannot be sure that it may write.
        Ok(self.pool.begin_with("BEGIN IMMEDIATE").await?)
    }

    async fn note(
        entry: &mut EffectsTransaction<Self>,
        key: &str,
        number: i64,
    ) -> Result<(), HandlerError> {
        sqlx::query(EFFECT).bind(key).bind(number).execute(&mut **entry).await?;
        Ok(())
    }

    async fn effects(&self) -> Vec<(String, i64)> {
        sqlx::query_as(EFFECTS).fetch_all(&self.pool).await.unwrap()
    }
}
