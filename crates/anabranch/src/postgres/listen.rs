//! Change notifications: one connection that listens, shared by all waiters.
//!
//! A notification can be lost with its connection, so each new connection counts as a change. A
//! pooler in transaction mode passes no notifications; the store is then only polled.

use super::session::{self, with_timeout};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, Executor};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Time after which a silent connection is checked with a query.
const SILENCE: Duration = Duration::from_secs(15);
/// Minimum connect time-out. Connecting takes several round trips, and TLS adds more.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Pause before a lost connection is reopened. It doubles with each failure, up to
/// [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Number of failures in a row that is logged as a warning. A server restart causes fewer.
const COMPLAINS_AFTER: u32 = 3;
/// Warning when no connection can be made.
const NO_LISTENER_WARNING: &str = "cannot connect to listen for lease changes: until this \
                                   succeeds, leases are polled, and a hand-over takes up to one \
                                   poll interval longer";
/// Warning about a pooler that keeps no sessions.
const POOLER_WARNING: &str = "the lease store's address is a pooler in transaction mode, which \
                              does not pass notifications: leases are polled, and a hand-over \
                              takes up to one poll interval longer; use the address of the server, \
                              or a pool in session mode, to be notified at once";

/// Waits for changes to the leases of an application.
pub(crate) struct ChangeListener {
    /// The listening task, shared by all clones.
    ear: Arc<ListenTask>,
    /// Number of changes that this clone has seen.
    told: AtomicU64,
}

struct ListenTask {
    /// Address of the server.
    address: PgConnectOptions,
    /// Notification channel.
    channel: &'static str,
    /// Payload of the notifications for this application.
    payload: String,
    /// Time-out of a statement.
    patience: Duration,
    /// Number of changes so far.
    heard: watch::Sender<u64>,
    /// The listening task, started by the first waiter. Ends when the last clone is dropped.
    task: Mutex<JoinSet<()>>,
}

impl ChangeListener {
    pub(crate) fn new(
        address: PgConnectOptions,
        channel: &'static str,
        payload: String,
        patience: Duration,
    ) -> Self {
        let (heard, _) = watch::channel(0);
        let task = Mutex::default();
        let ear = Arc::new(ListenTask { address, channel, payload, patience, heard, task });
        Self { ear, told: AtomicU64::new(0) }
    }

    /// Waits for a change that this clone has not seen.
    pub(crate) async fn changed(&self) {
        self.ear.listen();
        let mut heard = self.ear.heard.subscribe();
        let told = self.told.load(Ordering::Relaxed);
        // The sender lives as long as `self`.
        if let Ok(now) = heard.wait_for(|now| *now != told).await {
            self.told.store(*now, Ordering::Relaxed);
        }
    }
}

/// The clone has seen the same changes as its original.
impl Clone for ChangeListener {
    fn clone(&self) -> Self {
        let told = AtomicU64::new(self.told.load(Ordering::Relaxed));
        Self { ear: Arc::clone(&self.ear), told }
    }
}

impl ListenTask {
    /// Starts the listening task, unless it is running.
    fn listen(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        // The task only ends with the runtime that it was started on.
        while task.try_join_next().is_some() {}
        if task.is_empty() {
            let (address, payload) = (self.address.clone(), self.payload.clone());
            let (channel, heard) = (self.channel, self.heard.clone());
            task.spawn(listen(address, channel, payload, self.patience, heard));
        }
    }
}

async fn listen(
    address: PgConnectOptions,
    channel: &'static str,
    payload: String,
    patience: Duration,
    heard: watch::Sender<u64>,
) {
    let mut failures = 0;
    loop {
        match Box::pin(keeps_sessions(&address, patience)).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!("{POOLER_WARNING}");
                return std::future::pending().await;
            }
            Err(error) => {
                back_off(&mut failures, &error).await;
                continue;
            }
        }
        let before = *heard.borrow();
        let on_change = || heard.send_modify(|changes| *changes += 1);
        let ended = Box::pin(run_listen(&address, channel, &payload, patience, on_change)).await;
        if *heard.borrow() != before {
            failures = 0;
        }
        match ended {
            Ok(()) => tokio::time::sleep(PAUSE).await,
            Err(error) => back_off(&mut failures, &error).await,
        }
    }
}

/// Waits before the next attempt, longer after each failure.
async fn back_off(failures: &mut u32, error: &sqlx::Error) {
    *failures += 1;
    if *failures == COMPLAINS_AFTER {
        tracing::warn!(%error, "{NO_LISTENER_WARNING}");
    } else {
        tracing::debug!(%error, "no connection to listen for lease changes");
    }
    tokio::time::sleep(pause(*failures)).await;
}

/// Returns the pause after `failures` failures in a row.
fn pause(failures: u32) -> Duration {
    LONGEST_PAUSE.min(PAUSE * (1 << failures.saturating_sub(1).min(16)))
}

/// Returns true if connections to this address keep their sessions.
async fn keeps_sessions(
    address: &PgConnectOptions,
    patience: Duration,
) -> Result<bool, sqlx::Error> {
    let connecting = CONNECT_PATIENCE.max(patience);
    let mut mine = with_timeout(connecting, address.connect()).await?;
    let mut other = with_timeout(connecting, address.connect()).await?;
    let kept = session::keeps_session(&mut mine, &mut other, patience).await?;
    for connection in [other, mine] {
        // An error while closing does not matter.
        let _closed = with_timeout(patience, connection.close()).await;
    }
    Ok(kept)
}

/// Listens until the connection is lost. Calls `on_change` once the connection listens, and for
/// each notification with this payload.
pub async fn run_listen(
    address: &PgConnectOptions,
    channel: &str,
    payload: &str,
    patience: Duration,
    on_change: impl Fn() + Send,
) -> Result<(), sqlx::Error> {
    // The pool only serves to configure the listener's connection.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(CONNECT_PATIENCE.max(patience))
        .connect_lazy_with(address.clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    // The loop of this module reconnects, so that a new connection counts as a change.
    listener.eager_reconnect(false);
    with_timeout(patience, Box::pin(listener.listen(channel))).await?;
    on_change();
    loop {
        match tokio::time::timeout(SILENCE, listener.try_recv()).await {
            Ok(Ok(Some(notification))) if notification.payload() == payload => on_change(),
            Ok(Ok(Some(_))) => {}
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                with_timeout(patience, Box::pin(listener.execute("SELECT 1"))).await?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_an_end() {
        let seconds: Vec<u64> = (1..=7).map(|failures| pause(failures).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60]);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }
}
