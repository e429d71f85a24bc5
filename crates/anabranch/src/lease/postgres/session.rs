//! Whether a connection keeps its session.
//!
//! Behind a pooler in transaction mode it does not: each transaction may run on another connection
//! to the server. A `LISTEN` there would stay with a connection that others use, and its
//! notifications would break in on their statements.

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection, Executor, Row};

/// How often it is tried. Beside other clients a pooler can lend the same connection twice by
/// chance.
const ROUNDS: u32 = 3;

/// Whether connections to this address keep their sessions.
pub(super) async fn is_kept(address: &PgConnectOptions) -> Result<bool, sqlx::Error> {
    let mut mine = address.connect().await?;
    let mut other = address.connect().await?;
    let mut kept = true;
    for _ in 0..ROUNDS {
        kept = kept && !moves(&mut mine, &mut other).await?;
    }
    other.close().await?;
    mine.close().await?;
    Ok(kept)
}

/// Whether a transaction on the other connection gets the session of this one, or pushes it to
/// another one.
async fn moves(mine: &mut PgConnection, other: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let before = process(mine).await?;
    other.execute("BEGIN").await?;
    let moves = process(other).await? == before || process(mine).await? != before;
    other.execute("ROLLBACK").await?;
    Ok(moves)
}

/// The server process that answers. It stays the same in a session.
async fn process(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    // Without a prepared statement, which may not live until it is run.
    sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(connection).await?.try_get(0)
}
