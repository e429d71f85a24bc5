//! Whether a connection keeps its session.
//!
//! Behind a pooler in transaction mode it does not: each transaction may run on another connection
//! to the server. A `LISTEN` there would stay with a connection that others use, and its
//! notifications would break in on their statements. So would a lock.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};
use std::time::Duration;

/// How often it is tried. What a pooler lends depends on what its other clients do.
const ROUNDS: u32 = 5;

/// Whether these two connections to one address keep their sessions. Each statement may take `step`.
///
/// Each round asks on the other connection, in a transaction, what the server process of the first
/// one did last. Behind a pooler with a free connection both are that process, or the transaction
/// pushes the first to another. If all are in use, the process has served somebody else meanwhile.
pub async fn keeps_session(
    mine: &mut PgConnection,
    other: &mut PgConnection,
    step: Duration,
) -> Result<bool, sqlx::Error> {
    let mut before = None;
    for _ in 0..ROUNDS {
        let asked = ask(mine, MYSELF, step).await?;
        if before.is_some_and(|before| before != asked.process) {
            return Ok(false);
        }
        before = Some(asked.process);
        let seen = ask(other, &seen_by_other(asked.process), step).await?;
        // It comes last: a pooler with one connection has none left to answer it.
        let moves = seen.process == asked.process
            || seen.started.is_some() && seen.started != asked.started
            || ask(mine, MYSELF, step).await?.process != asked.process;
        ask(other, &format!("ROLLBACK; {MYSELF}"), step).await?;
        if moves {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The server process that answers, and when it began to.
const MYSELF: &str = "SELECT pg_backend_pid(), statement_timestamp()::text";

/// The server process that answers, and when another one began its last statement: nothing, if the
/// server does not note that.
fn seen_by_other(process: i32) -> String {
    format!(
        "BEGIN; SELECT pg_backend_pid(), \
         (SELECT query_start::text FROM pg_catalog.pg_stat_activity WHERE pid = {process})"
    )
}

/// What a server process says.
struct ServerProcess {
    process: i32,
    /// When a statement began.
    started: Option<String>,
}

async fn ask(
    connection: &mut PgConnection,
    sql: &str,
    step: Duration,
) -> Result<ServerProcess, sqlx::Error> {
    // Without a prepared statement, which may not live until it is run.
    let sql = sqlx::raw_sql(AssertSqlSafe(sql));
    let row = with_timeout(step, Box::pin(sql.fetch_one(connection))).await?;
    Ok(ServerProcess { process: row.try_get(0)?, started: row.try_get(1)? })
}

/// The answer, if it comes in time.
pub async fn with_timeout<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let late = || sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
    tokio::time::timeout(patience, answer).await.unwrap_or_else(|_| Err(late()))
}
