//! Listener for notifications of new rows.
//!
//! Notifications are lost with their connection, so each reconnection counts as a notification.

use crate::database::{Database, PATIENCE};
use crate::table::OutboxTable;
use anabranch::postgres::listen::run_listen;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Channel of all outboxes. The payload of a notification is the table's label.
pub(crate) const CHANNEL: &str = "anabranch_outbox";
/// Pause before a lost connection is reopened.
const PAUSE: Duration = Duration::from_secs(1);

/// Notifies a relay when new rows may exist.
pub(crate) struct RowListener {
    /// Signalled by each notification. Several before the next wait count as one.
    heard: Arc<Notify>,
    /// The listening task, aborted on drop.
    _task: JoinSet<()>,
}

impl RowListener {
    /// Starts listening.
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
