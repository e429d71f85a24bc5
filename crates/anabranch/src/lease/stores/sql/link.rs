//! One connection to either database, with their differences in API calls.

use super::cell::Cell;
use super::failure::SqlFailure;
#[cfg(feature = "postgres")]
use super::literal::{bytes_of, with_values};
#[cfg(feature = "sqlite")]
use sqlx::Arguments;
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
#[cfg(feature = "sqlite")]
use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Column, ConnectOptions, Row, TypeInfo, ValueRef};
use std::sync::Arc;
use std::time::Duration;

/// Pause before a busy SQLite file is opened again.
#[cfg(feature = "sqlite")]
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Turns `synchronous_commit` on where it is off: an acknowledged take that is lost in a crash
/// would lead to two owners. It may be off for the sake of speed, for data of another kind.
/// Stricter settings stay.
#[cfg(feature = "postgres")]
const ACKNOWLEDGED_IS_KEPT: &str = "SELECT set_config('synchronous_commit', 'on', true) \
                                    WHERE current_setting('synchronous_commit') = 'off'";

/// Location of a database, and its credentials.
#[derive(Clone)]
pub(crate) enum DatabaseAddress {
    #[cfg(feature = "postgres")]
    Postgres(Box<PgConnectOptions>),
    #[cfg(feature = "sqlite")]
    Sqlite(Box<SqliteConnectOptions>),
}

impl DatabaseAddress {
    /// Opens a connection. The caller bounds the time.
    pub(in crate::lease) async fn connect(&self) -> Result<SqlConnection, SqlFailure> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(options) => Ok(SqlConnection::Postgres(options.connect().await?)),
            // Switching a fresh file to WAL does not wait for other connections that do the same.
            #[cfg(feature = "sqlite")]
            Self::Sqlite(options) => loop {
                match options.connect().await.map_err(SqlFailure::from) {
                    Err(failure) if failure.is_busy() => tokio::time::sleep(BUSY_PAUSE).await,
                    connected => return Ok(SqlConnection::Sqlite(connected?)),
                }
            },
        }
    }

    /// Returns the statements that open a transaction. On PostgreSQL, it waits at most `lock` for a
    /// row's lock, and ends by itself if a statement takes, or it stays idle, longer than `whole`.
    pub(in crate::lease) fn begin(&self, lock: Duration, whole: Duration) -> Arc<str> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => format!(
                "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {ACKNOWLEDGED_IS_KEPT}; \
                 SET LOCAL lock_timeout = '{}ms'; SET LOCAL statement_timeout = '{1}ms'; \
                 SET LOCAL idle_in_transaction_session_timeout = '{1}ms'",
                lock.as_millis(),
                whole.as_millis()
            )
            .into(),
            // Takes the write lock at once: a transaction that reads first can fail to write,
            // whatever its timeout.
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => {
                let _ = (lock, whole);
                "BEGIN IMMEDIATE".into()
            }
        }
    }
}

/// A connection owned by the store.
pub(crate) enum SqlConnection {
    #[cfg(feature = "postgres")]
    Postgres(PgConnection),
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteConnection),
}

impl SqlConnection {
    pub(crate) fn wire(&mut self) -> SqlExecutor<'_> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => SqlExecutor::Postgres(connection),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(connection) => SqlExecutor::Sqlite(connection),
        }
    }
}

/// A connection to send statements on: the store's own, or that of the user's transaction.
pub(crate) enum SqlExecutor<'a> {
    #[cfg(feature = "postgres")]
    Postgres(&'a mut PgConnection),
    #[cfg(feature = "sqlite")]
    Sqlite(&'a mut SqliteConnection),
}

impl SqlExecutor<'_> {
    /// Returns the rows that a statement yields.
    pub(in crate::lease) async fn rows(
        &mut self,
        sql: &Arc<str>,
        cells: Vec<Cell>,
    ) -> Result<Vec<Vec<Cell>>, SqlFailure> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => {
                let query = sqlx::raw_sql(AssertSqlSafe(with_values(sql, &cells)?));
                query.fetch_all(&mut **connection).await?.iter().map(postgres_cells).collect()
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(connection) => {
                let sql = AssertSqlSafe(Arc::clone(sql));
                let query = sqlx::query_with(sql, arguments(cells)?);
                query.fetch_all(&mut **connection).await?.iter().map(sqlite_cells).collect()
            }
        }
    }

    /// Returns the number of rows that a statement changed.
    pub(in crate::lease) async fn change(
        &mut self,
        sql: &Arc<str>,
        cells: Vec<Cell>,
    ) -> Result<u64, SqlFailure> {
        Ok(match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => {
                let query = sqlx::raw_sql(AssertSqlSafe(with_values(sql, &cells)?));
                query.execute(&mut **connection).await?.rows_affected()
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(connection) => {
                let sql = AssertSqlSafe(Arc::clone(sql));
                let query = sqlx::query_with(sql, arguments(cells)?);
                query.execute(&mut **connection).await?.rows_affected()
            }
        })
    }

    /// Runs statements without parameters, in one round trip.
    pub(in crate::lease) async fn run(&mut self, sql: &str) -> Result<(), SqlFailure> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => sql.execute(&mut **connection).await.map(|_| ())?,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(connection) => sql.execute(&mut **connection).await.map(|_| ())?,
        }
        Ok(())
    }
}

#[cfg(feature = "sqlite")]
fn arguments(cells: Vec<Cell>) -> Result<SqliteArguments, SqlFailure> {
    let mut arguments = SqliteArguments::default();
    for cell in cells {
        match cell {
            Cell::Text(text) => arguments.add(text),
            Cell::Number(number) => arguments.add(number),
            Cell::NoNumber => arguments.add(None::<i64>),
            Cell::Flag(flag) => arguments.add(flag),
            Cell::Bytes(bytes) => arguments.add(bytes),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}

#[cfg(feature = "postgres")]
fn postgres_cells(row: &PgRow) -> Result<Vec<Cell>, SqlFailure> {
    let cell = |(i, column): (usize, &sqlx::postgres::PgColumn)| {
        Ok(match column.type_info().name() {
            "TEXT" | "VARCHAR" | "NAME" => Cell::Text(row.try_get(i)?),
            "BYTEA" => Cell::Bytes(postgres_bytes(row, i, column.name())?),
            _ if row.try_get_raw(i)?.is_null() => Cell::Text(None),
            "INT8" => Cell::Number(row.try_get(i)?),
            "INT4" => Cell::Number(row.try_get::<i32, _>(i)?.into()),
            "BOOL" => Cell::Flag(row.try_get(i)?),
            other => return Err(unexpected_type(column.name(), other)),
        })
    };
    row.columns().iter().enumerate().map(cell).collect()
}

/// Reads `bytea` as text, in either form of `bytea_output` that the role or the database sets.
#[cfg(feature = "postgres")]
fn postgres_bytes(row: &PgRow, i: usize, name: &str) -> Result<Option<Vec<u8>>, SqlFailure> {
    let raw = row.try_get_raw(i)?;
    if raw.is_null() {
        return Ok(None);
    }
    let text = raw.as_str().map_err(sqlx::Error::Decode)?;
    Ok(Some(bytes_of(text).ok_or_else(|| unexpected_type(name, "BYTEA"))?))
}

#[cfg(feature = "sqlite")]
fn sqlite_cells(row: &SqliteRow) -> Result<Vec<Cell>, SqlFailure> {
    let cell = |(i, column): (usize, &sqlx::sqlite::SqliteColumn)| {
        let raw = row.try_get_raw(i)?;
        if raw.is_null() {
            return Ok(Cell::Text(None));
        }
        // SQLite's values have types of their own, independent of the column's type.
        let found = raw.type_info().into_owned();
        Ok(match found.name() {
            "TEXT" => Cell::Text(row.try_get(i)?),
            "BLOB" => Cell::Bytes(row.try_get(i)?),
            "INTEGER" => Cell::Number(row.try_get(i)?),
            other => return Err(unexpected_type(column.name(), other)),
        })
    };
    row.columns().iter().enumerate().map(cell).collect()
}

fn unexpected_type(column: &str, kind: &str) -> SqlFailure {
    SqlFailure::Unreadable {
        row: String::new(),
        detail: format!("column {column} holds a value of type {kind}"),
    }
}
