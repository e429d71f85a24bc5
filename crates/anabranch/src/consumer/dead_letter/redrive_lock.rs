//! The one redrive of a table that runs. What keeps the others away ends with its process.
//!
//! PostgreSQL has locks of a session, so the redrive has a session of its own, and does all of its
//! work in it: when the session is lost, so is the right to go on. SQLite has only locks that keep
//! parking consumers away too, so there it is the lock of a file beside the database.

use super::DeadLetterError;
use super::file::{beside, only_one};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use tokio::task::spawn_blocking;

/// The first half of the number of a lock in PostgreSQL. The second is that of the table.
#[cfg(feature = "postgres")]
const REDRIVES: i32 = 0x7061_726b;

/// The right to redrive a table.
pub(in crate::consumer) enum RedriveLock {
    /// A session that has the lock.
    #[cfg(feature = "postgres")]
    Postgres(Box<sqlx::PgConnection>),
    /// The pool, and the locked file. A database in memory needs none.
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::SqlitePool, #[expect(dead_code, reason = "held, not read")] Option<File>),
}

impl RedriveLock {
    /// In PostgreSQL. `table` is the table's name as it stands in statements.
    #[cfg(feature = "postgres")]
    pub(in crate::consumer) async fn postgres(
        pool: &sqlx::PgPool,
        table: &str,
    ) -> Result<Result<Self, DeadLetterError>, sqlx::Error> {
        // Out of the pool: dropped, it takes its lock along.
        let mut session = pool.acquire().await?.detach();
        let sql = "SELECT pg_try_advisory_lock($1, to_regclass($2)::oid::int4)";
        let locked: bool =
            sqlx::query_scalar(sql).bind(REDRIVES).bind(table).fetch_one(&mut session).await?;
        Ok(if locked { Ok(Self::Postgres(Box::new(session))) } else { Err(busy(table)) })
    }

    /// In SQLite.
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
        let locked = locked.unwrap_or_else(|_| Err(io::Error::other("it was given up")));
        Ok(match locked {
            Ok(file) => Ok(Self::Sqlite(pool.clone(), Some(file))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(busy(table)),
            Err(source) => Err(DeadLetterError::File { path: path.display().to_string(), source }),
        })
    }

    /// Lets the next redrive begin. Dropped, it does the same a moment later.
    pub(in crate::consumer) async fn end(self) {
        match self {
            // A session that can't say farewell is gone.
            #[cfg(feature = "postgres")]
            Self::Postgres(session) => drop(sqlx::Connection::close(*session).await),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(..) => {}
        }
    }
}

fn busy(table: &str) -> DeadLetterError {
    DeadLetterError::Busy { path: format!("the table {}", table.replace('"', "")) }
}
