//! The lock that allows one redrive of a dead-letter table at a time. It ends with its process.
//!
//! In PostgreSQL the redrive takes a session-level advisory lock and does all its work in that
//! session. If the session is lost, the redrive cannot continue. The locks of SQLite would also
//! block consumers that store dead letters, so there the lock is a file beside the database.

use super::DeadLetterError;
#[cfg(feature = "sqlite")]
use super::file::{beside, only_one};
#[cfg(feature = "sqlite")]
use std::{fs::File, io, path::PathBuf};
#[cfg(feature = "sqlite")]
use tokio::task::spawn_blocking;

/// First key of the PostgreSQL advisory lock. The second key is the OID of the table.
#[cfg(feature = "postgres")]
const REDRIVES: i32 = 0x7061_726b;

/// Exclusive right to redrive a table.
pub(in crate::consumer) enum RedriveLock {
    /// The session that holds the advisory lock.
    #[cfg(feature = "postgres")]
    Postgres(Box<sqlx::PgConnection>),
    /// The pool and the locked file; `None` for an in-memory database, which needs no lock.
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::SqlitePool, #[expect(dead_code, reason = "held, not read")] Option<File>),
}

impl RedriveLock {
    /// Takes the lock in PostgreSQL. `table` is the quoted name of the table.
    #[cfg(feature = "postgres")]
    pub(in crate::consumer) async fn postgres(
        pool: &sqlx::PgPool,
        table: &str,
    ) -> Result<Result<Self, DeadLetterError>, sqlx::Error> {
        // Detached from the pool, so that dropping the connection releases the lock.
        let mut session = pool.acquire().await?.detach();
        let sql = "SELECT pg_try_advisory_lock($1, to_regclass($2)::oid::int4)";
        let locked: bool =
            sqlx::query_scalar(sql).bind(REDRIVES).bind(table).fetch_one(&mut session).await?;
        Ok(if locked { Ok(Self::Postgres(Box::new(session))) } else { Err(busy(table)) })
    }

    /// Takes the lock of a SQLite database, a file beside it. `table` is the quoted name of the
    /// table.
    #[cfg(feature = "sqlite")]
    pub(in crate::consumer) async fn sqlite(
        pool: &sqlx::SqlitePool,
        table: &str,
    ) -> Result<Result<Self, DeadLetterError>, sqlx::Error> {
        let sql = "SELECT file FROM pragma_database_list WHERE name = 'main'";
        let database: Option<String> = sqlx::query_scalar(sql).fetch_one(pool).await?;
        let Some(database) = database.filter(|file| !file.is_empty()) else {
            return Ok(Ok(Self::Sqlite(pool.clone(), None)));
        };
        let path = beside(&PathBuf::from(database), &format!(".{}.lock", table.replace('"', "")));
        let lock = path.clone();
        let locked = spawn_blocking(move || only_one(&lock)).await;
        let locked = locked.unwrap_or_else(|_| Err(io::Error::other("locking it was interrupted")));
        Ok(match locked {
            Ok(file) => Ok(Self::Sqlite(pool.clone(), Some(file))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(busy(table)),
            Err(source) => Err(DeadLetterError::File { path: path.display().to_string(), source }),
        })
    }

    /// Releases the lock. Dropping it has the same effect a moment later.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(clippy::unused_async, reason = "only PostgreSQL has something to wait for")
    )]
    pub(in crate::consumer) async fn end(self) {
        match self {
            // If closing fails, the session is already gone.
            #[cfg(feature = "postgres")]
            Self::Postgres(session) => drop(sqlx::Connection::close(*session).await),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(..) => {}
        }
    }
}

fn busy(table: &str) -> DeadLetterError {
    DeadLetterError::Busy { path: format!("table {}", table.replace('"', "")) }
}
