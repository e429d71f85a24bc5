//! Dead letters in a table of PostgreSQL or SQLite.

use super::DeadLetterError;
use super::record::DeadLetter;
use super::redrive::{RedriveKeys, RedriveSummary};
use super::redrive_lock::RedriveLock;
use crate::consumer::modes::closure::{Delivery, HandlerError};
use anabranch_model::lease::LeaseKey;
use anabranch_model::record::{PartitionKey, UserRecord};
use sqlx::AssertSqlSafe;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// A table of dead letters in PostgreSQL or SQLite, created on first use.
///
/// Its columns are `stream, shard, sequence, sub, aggregated, partition_key, explicit_hash_key,
/// arrival_ms, error, data`, and `parked_at`, the time of the insert. A record that is stored twice
/// is one row.
///
/// Give each application its own table.
#[derive(Clone)]
pub struct DeadLetterTable {
    pool: TablePool,
    /// Table name, quoted for SQL.
    table: Arc<str>,
    /// Set once `CREATE TABLE IF NOT EXISTS` has succeeded.
    made: Arc<OnceCell<()>>,
}

#[derive(Clone)]
enum TablePool {
    #[cfg(feature = "postgres")]
    Postgres(sqlx::PgPool),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::SqlitePool),
}

/// Runs the same calls on either database.
macro_rules! on_either {
    ($table:expr, $pool:ident => $done:expr) => {
        match &$table.pool {
            #[cfg(feature = "postgres")]
            TablePool::Postgres($pool) => $done,
            #[cfg(feature = "sqlite")]
            TablePool::Sqlite($pool) => $done,
        }
    };
}

/// Runs the same calls on the connection of either redrive lock.
macro_rules! in_lock {
    ($lock:expr, $database:ident => $done:expr) => {
        match &mut $lock {
            #[cfg(feature = "postgres")]
            RedriveLock::Postgres(session) => {
                let $database = &mut **session;
                $done
            }
            #[cfg(feature = "sqlite")]
            RedriveLock::Sqlite(pool, _) => {
                let $database = &*pool;
                $done
            }
        }
    };
}

/// All columns of a row except `parked_at`.
type DeadLetterRow =
    (String, String, String, i64, bool, Vec<u8>, Option<String>, i64, String, Vec<u8>);

impl DeadLetterTable {
    /// Uses the table `table` (`schema.name` or `name`) in a PostgreSQL database.
    #[cfg(feature = "postgres")]
    pub fn postgres(pool: sqlx::PgPool, table: &str) -> Result<Self, TableNameError> {
        Self::of(TablePool::Postgres(pool), table)
    }

    /// Uses the table `table` in a SQLite file.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(pool: sqlx::SqlitePool, table: &str) -> Result<Self, TableNameError> {
        Self::of(TablePool::Sqlite(pool), table)
    }

    fn of(pool: TablePool, table: &str) -> Result<Self, TableNameError> {
        let plain = |part: &str| {
            let mut letters = part.chars();
            let first = letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
            first && part.len() <= 63 && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if !table.split('.').all(plain) || table.matches('.').count() > 1 {
            return Err(TableNameError { table: table.to_owned() });
        }
        let quoted: Vec<_> = table.split('.').map(|part| format!("\"{part}\"")).collect();
        Ok(Self { pool, table: quoted.join(".").into(), made: Arc::default() })
    }

    /// Stores a dead letter. On return the row is committed.
    pub(in crate::consumer) async fn store(
        &self,
        parked: &DeadLetter,
    ) -> Result<(), DeadLetterError> {
        self.make().await?;
        let record = &parked.record;
        let sql = format!(
            "INSERT INTO {} (stream, shard, sequence, sub, aggregated, partition_key, \
             explicit_hash_key, arrival_ms, error, data) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) \
             ON CONFLICT (stream, shard, sequence, sub) DO NOTHING",
            self.table
        );
        let stored = on_either!(self, pool => {
            let insert = sqlx::query(AssertSqlSafe(sql))
                .bind(parked.shard.stream.as_str())
                .bind(parked.shard.shard.as_str())
                .bind(record.sequence.to_string())
                .bind(record.sub.cast_signed())
                .bind(record.aggregated)
                .bind(record.partition_key.as_bytes())
                .bind(record.explicit_hash_key.map(|hash| hash.to_string()))
                .bind(record.arrival_ms.cast_signed())
                // PostgreSQL text cannot contain NUL.
                .bind(parked.error.replace('\0', " "))
                .bind(&*record.data);
            insert.execute(pool).await.map(drop)
        });
        stored.map_err(|source| self.failed(source))
    }

    /// Redrives all dead letters of the table; see
    /// [`DeadLetterQueue::redrive`](super::DeadLetterQueue::redrive).
    pub(in crate::consumer) async fn redrive<F, T, E>(
        &self,
        handle: F,
    ) -> Result<RedriveSummary, DeadLetterError>
    where
        F: Fn(Delivery) -> T,
        T: Future<Output = Result<(), E>>,
        E: Into<HandlerError>,
    {
        self.make().await?;
        // Sequence numbers of a child shard are above those of its parents, so this order is
        // correct for each key. They have no leading zeros, so a longer number is a larger one.
        let sql = format!(
            "SELECT stream, shard, sequence, sub, aggregated, partition_key, explicit_hash_key, \
             arrival_ms, error, data FROM {} ORDER BY stream, length(sequence), sequence, sub",
            self.table
        );
        let mut hold = self.lock().await?;
        let rows: Result<Vec<DeadLetterRow>, _> = in_lock!(hold, database => {
            sqlx::query_as(AssertSqlSafe(sql)).fetch_all(database).await
        });
        let mut keys = RedriveKeys::default();
        let rows = rows.map_err(|source| self.failed(source))?;
        let (parked, unreadable): (Vec<_>, Vec<_>) =
            rows.into_iter().map(dead_letter_of).partition(Option::is_some);
        keys.begin(unreadable.len());
        for parked in parked.into_iter().flatten() {
            if keys.handle(&parked, &handle).await {
                self.remove(&mut hold, &parked).await?;
            }
        }
        hold.end().await;
        Ok(keys.end())
    }

    /// Takes the exclusive lock for a redrive of this table.
    async fn lock(&self) -> Result<RedriveLock, DeadLetterError> {
        let hold = match &self.pool {
            #[cfg(feature = "postgres")]
            TablePool::Postgres(pool) => RedriveLock::postgres(pool, &self.table).await,
            #[cfg(feature = "sqlite")]
            TablePool::Sqlite(pool) => RedriveLock::sqlite(pool, &self.table).await,
        };
        hold.map_err(|source| self.failed(source))?
    }

    async fn remove(
        &self,
        hold: &mut RedriveLock,
        parked: &DeadLetter,
    ) -> Result<(), DeadLetterError> {
        let sql = format!(
            "DELETE FROM {} WHERE stream = $1 AND shard = $2 AND sequence = $3 AND sub = $4",
            self.table
        );
        let removed = in_lock!(*hold, database => {
            let delete = sqlx::query(AssertSqlSafe(sql))
                .bind(parked.shard.stream.as_str())
                .bind(parked.shard.shard.as_str())
                .bind(parked.record.sequence.to_string())
                .bind(parked.record.sub.cast_signed());
            delete.execute(database).await.map(drop)
        });
        removed.map_err(|source| self.failed(source))
    }

    async fn make(&self) -> Result<(), DeadLetterError> {
        let made = self.made.get_or_try_init(async || {
            let (bytes, moment) = match &self.pool {
                #[cfg(feature = "postgres")]
                TablePool::Postgres(_) => ("bytea", "timestamptz NOT NULL DEFAULT now()"),
                #[cfg(feature = "sqlite")]
                TablePool::Sqlite(_) => ("BLOB", "TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP"),
            };
            let sql = format!(
                "CREATE TABLE IF NOT EXISTS {} (stream text NOT NULL, shard text NOT NULL, \
                 sequence text NOT NULL, sub bigint NOT NULL, aggregated boolean NOT NULL, \
                 partition_key {bytes} NOT NULL, explicit_hash_key text, arrival_ms bigint NOT NULL, \
                 error text NOT NULL, data {bytes} NOT NULL, parked_at {moment}, \
                 PRIMARY KEY (stream, shard, sequence, sub))",
                self.table
            );
            on_either!(self, pool => {
                sqlx::query(AssertSqlSafe(sql)).execute(pool).await.map(drop)
            })
        });
        made.await.map_err(|source| self.failed(source))?;
        Ok(())
    }

    fn failed(&self, source: sqlx::Error) -> DeadLetterError {
        DeadLetterError::Table { table: self.table.to_string(), source }
    }
}

/// Decodes a row. Returns `None` if it was edited and cannot be parsed.
fn dead_letter_of(row: DeadLetterRow) -> Option<DeadLetter> {
    let (stream, shard, sequence, sub, aggregated, key, hash, arrival_ms, error, data) = row;
    let explicit_hash_key = match hash {
        None => None,
        Some(hash) => Some(hash.parse().ok()?),
    };
    let record = UserRecord {
        sequence: sequence.parse().ok()?,
        sub: sub.cast_unsigned(),
        aggregated,
        partition_key: PartitionKey::from_utf8(key.into()).ok()?,
        explicit_hash_key,
        data: data.into(),
        arrival_ms: arrival_ms.cast_unsigned(),
    };
    Some(DeadLetter { shard: Arc::new(LeaseKey::new(stream, shard)), record, error })
}

/// Error of an invalid table name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{table:?} is not a valid name of a dead-letter table: use letters, digits and _, and at most \
     one schema before a dot"
)]
#[non_exhaustive]
pub struct TableNameError {
    /// The rejected name.
    pub table: String,
}

impl fmt::Debug for DeadLetterTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeadLetterTable({})", self.table)
    }
}
