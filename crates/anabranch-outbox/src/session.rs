//! Whether the database keeps a session for as long as its connection lasts.
//!
//! A pooler in transaction mode does not: each transaction may run on another connection to the
//! server. The lock would stay with a session that others use, and so would the settings.

use crate::database::{Database, Link, SESSION_OF_ITS_OWN};
use crate::error::RelayError;

/// Refuses a pooler in transaction mode.
pub(crate) async fn check(database: &Database) -> Result<(), RelayError> {
    let mut link = database.connect().await?;
    let mut other = database.connect().await?;
    let moves = moves(&mut link, &mut other).await?;
    other.close().await;
    if moves {
        let detail =
            format!("each transaction has another session of the server; {SESSION_OF_ITS_OWN}");
        return Err(link.refused("keep a session", detail));
    }
    link.close().await;
    Ok(())
}

/// Whether a transaction on the other connection gets the session of this one, or pushes it to
/// another one. Either happens behind a pooler: it has a connection that is free or it has not.
async fn moves(link: &mut Link, other: &mut Link) -> Result<bool, RelayError> {
    let before = link.process().await?;
    other.script("BEGIN", "keep a session").await?;
    let moves = other.process().await? == before || link.process().await? != before;
    other.script("ROLLBACK", "keep a session").await?;
    Ok(moves)
}
