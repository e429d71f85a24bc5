//! Notifications of new rows: a connection that listens, and the relay that waits.
//!
//! A notification can be lost with its connection, so each new connection counts as one.

use crate::database::{Database, PATIENCE};
use crate::table::OutboxTable;
use anabranch::postgres::listen::run_listen;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// The channel of all outboxes; a notification carries the table's name.
pub(crate) const CHANNEL: &str = "anabranch_outbox";
/// How long to wait before a lost connection is opened again.
const PAUSE: Duration = Duration::from_secs(1);

/// Tells when rows may have come.
pub(crate) struct RowListener {
    /// Notified with each notification; many before the first look count as one.
    heard: Arc<Notify>,
    /// The task that listens. It ends when this is dropped.
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

    /// Waits for a notification since the last call.
    pub(crate) async fn wait_notified(&self) {
        self.heard.notified().await;
    }
}

async fn listen(database: Database, payload: String, heard: Arc<Notify>) {
    loop {
        let on_change = || heard.notify_one();
        let listening = run_listen(database.options(), CHANNEL, &payload, PATIENCE, on_change);
        if let Err(error) = Box::pin(listening).await {
            tracing::debug!(%error, "the connection that listens for rows was lost");
        }
        heard.notify_one();
        tokio::time::sleep(PAUSE).await;
    }
}
