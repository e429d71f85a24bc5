//! Hearing of changes: one connection that listens, and everybody who waits.
//!
//! A notification can be lost with its connection, so each new connection counts as a change. Behind
//! a pooler in transaction mode there is nothing to hear: looks go on by the clock.

use super::session;
use crate::lease::sql::CHANNEL;
use sqlx::Executor;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long a silent connection is trusted before it is asked whether it still lives.
const SILENCE: Duration = Duration::from_secs(15);
/// How long to wait before a lost connection is opened again.
const PAUSE: Duration = Duration::from_secs(1);
/// What is said of a pooler that keeps no sessions.
const UNHEARD: &str = "the address of the leases is that of a pooler in transaction mode, which \
                       passes no notifications: leases are polled, and a hand-over takes up to a \
                       poll longer; name the server itself, or a pool in session mode, to hear of \
                       changes at once";

/// Tells when the plan of an application may have changed.
pub(super) struct Listener {
    /// What all clones share.
    ear: Arc<Ear>,
    /// The number of changes that this clone was told of.
    told: AtomicU64,
}

struct Ear {
    /// Where to listen.
    address: PgConnectOptions,
    /// What a notification carries when it is about this application.
    payload: String,
    /// How long the server may take to answer.
    patience: Duration,
    /// How many changes were heard of.
    heard: watch::Sender<u64>,
    /// The task that listens, once somebody wants to know. Ends with the last clone.
    task: Mutex<JoinSet<()>>,
}

impl Listener {
    pub(super) fn new(address: PgConnectOptions, payload: String, patience: Duration) -> Self {
        let (heard, _) = watch::channel(0);
        let task = Mutex::default();
        let ear = Arc::new(Ear { address, payload, patience, heard, task });
        Self { ear, told: AtomicU64::new(0) }
    }

    /// Waits for a change that this clone was not told of.
    pub(super) async fn changed(&self) {
        self.ear.listen();
        let mut heard = self.ear.heard.subscribe();
        let told = self.told.load(Ordering::Relaxed);
        // The sender lives as long as we do.
        if let Ok(now) = heard.wait_for(|now| *now != told).await {
            self.told.store(*now, Ordering::Relaxed);
        }
    }
}

/// A clone was told what its original was.
impl Clone for Listener {
    fn clone(&self) -> Self {
        let told = AtomicU64::new(self.told.load(Ordering::Relaxed));
        Self { ear: Arc::clone(&self.ear), told }
    }
}

impl Ear {
    /// Starts the task that listens, unless it runs.
    fn listen(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        // A task ends only with the runtime that it was started on.
        while task.try_join_next().is_some() {}
        if task.is_empty() {
            let (address, payload) = (self.address.clone(), self.payload.clone());
            task.spawn(listen(address, payload, self.patience, self.heard.clone()));
        }
    }
}

async fn listen(
    address: PgConnectOptions,
    payload: String,
    patience: Duration,
    heard: watch::Sender<u64>,
) {
    loop {
        match in_time(patience, Box::pin(session::is_kept(&address))).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!("{UNHEARD}");
                return std::future::pending().await;
            }
            Err(error) => {
                tracing::debug!(%error, "no connection can be had to listen for lease changes");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        }
        // The pool is only how a listener gets its connection.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(patience)
            .connect_lazy_with(address.clone());
        if let Err(error) = Box::pin(hear(&pool, &payload, patience, &heard)).await {
            tracing::debug!(%error, "the connection that listens for lease changes was lost");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Listens until the connection is lost.
async fn hear(
    pool: &sqlx::PgPool,
    payload: &str,
    patience: Duration,
    heard: &watch::Sender<u64>,
) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    // Ours is the loop that connects again: it has to know, so as to count it as a change.
    listener.eager_reconnect(false);
    in_time(patience, Box::pin(listener.listen(CHANNEL))).await?;
    heard.send_modify(|changes| *changes += 1);
    loop {
        match tokio::time::timeout(SILENCE, listener.try_recv()).await {
            Ok(Ok(Some(notification))) if notification.payload() == payload => {
                heard.send_modify(|changes| *changes += 1);
            }
            Ok(Ok(Some(_))) => {}
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                in_time(patience, Box::pin(listener.execute("SELECT 1"))).await?;
            }
        }
    }
}

async fn in_time<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    tokio::time::timeout(patience, answer).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}
