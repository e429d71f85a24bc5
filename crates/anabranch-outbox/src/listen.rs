//! Hearing of new rows: a connection that listens, and the relay that wants to know.
//!
//! A notification can be lost with its connection, so each new connection counts as one.

use crate::database::{Database, PATIENCE};
use crate::table::OutboxTable;
use sqlx::Executor;
use sqlx::postgres::{PgListener, PgPoolOptions};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// The channel of all outboxes; a notification carries the table's name.
pub(crate) const CHANNEL: &str = "anabranch_outbox";
/// How long a silent connection is trusted before it is asked whether it still lives.
const SILENCE: Duration = Duration::from_secs(15);
/// How long to wait before a lost connection is opened again.
const PAUSE: Duration = Duration::from_secs(1);

/// Tells when rows may have come.
pub(crate) struct RowListener {
    /// Told with each notification; many before the first look count as one.
    heard: Arc<Notify>,
    /// The task that listens. Ends with the ear.
    _task: JoinSet<()>,
}

impl RowListener {
    /// Begins to listen.
    pub(crate) fn open(database: &Database, table: &OutboxTable) -> Self {
        let heard = Arc::new(Notify::new());
        let mut task = JoinSet::new();
        task.spawn(listen(database.clone(), table.label(), Arc::clone(&heard)));
        Self { heard, _task: task }
    }

    /// Waits for news since the last call.
    pub(crate) async fn wait_notified(&self) {
        self.heard.notified().await;
    }
}

async fn listen(database: Database, payload: String, heard: Arc<Notify>) {
    loop {
        if let Err(error) = Box::pin(run_listen(&database, &payload, &heard)).await {
            tracing::debug!(%error, "the connection that listens for rows was lost");
        }
        heard.notify_one();
        tokio::time::sleep(PAUSE).await;
    }
}

/// Listens until the connection is lost.
async fn run_listen(database: &Database, payload: &str, heard: &Notify) -> Result<(), sqlx::Error> {
    // The pool is only how a listener gets its connection.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(PATIENCE)
        .connect_lazy_with(database.options().clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    // Ours is the loop that connects again: it has to know, so as to count it as news.
    listener.eager_reconnect(false);
    with_timeout(Box::pin(listener.listen(CHANNEL))).await?;
    heard.notify_one();
    loop {
        match tokio::time::timeout(SILENCE, listener.try_recv()).await {
            Ok(Ok(Some(notification))) if notification.payload() == payload => heard.notify_one(),
            Ok(Ok(Some(_))) => {}
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                with_timeout(Box::pin(listener.execute("SELECT 1"))).await?;
            }
        }
    }
}

async fn with_timeout<T>(
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    tokio::time::timeout(PATIENCE, answer).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}
