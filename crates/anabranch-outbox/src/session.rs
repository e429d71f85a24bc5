//! Check that the database keeps one session per connection.
//!
//! A pooler in transaction mode does not: each transaction may run on another server connection.
//! The advisory lock and the session settings would then stay with a session that others use.

use crate::database::{Database, SESSION_OF_ITS_OWN};
use crate::error::RelayError;

/// Returns an error for a pooler in transaction mode.
pub(crate) async fn check(database: &Database) -> Result<(), RelayError> {
    let mut link = database.connect().await?;
    let mut other = database.connect().await?;
    let kept = link.keeps_its_session(&mut other).await?;
    other.close().await;
    if !kept {
        let detail =
            format!("each transaction runs in another session of the server; {SESSION_OF_ITS_OWN}");
        return Err(link.refused("keep a session", detail));
    }
    link.close().await;
    Ok(())
}
