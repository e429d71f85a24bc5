//! Syncing of appended entries to stable storage, and waiting for it.
//!
//! A dedicated thread syncs, because a sync blocks for milliseconds. Under `always`, one sync
//! serves everyone who asked while the previous one ran.

use super::error::SyncError;
use std::fs::File;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::watch;

/// Policy for syncing the journal to stable storage. Killing the process loses nothing under any
/// policy. They differ in what a power cut may lose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Syncs before an operation is acknowledged. A power cut loses nothing acknowledged.
    Always,
    /// Syncs at this interval, in milliseconds. A power cut loses at most what arrived since the
    /// last sync.
    Interval(u64),
    /// Leaves syncing to the operating system.
    Never,
}

/// The interval, in milliseconds, of a plain `interval`.
const DEFAULT_INTERVAL_MS: u64 = 1_000;

/// Error of a text that is not a sync policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a sync policy: it must be always, never, interval or interval:MILLISECONDS")]
pub struct ParseFsyncError(String);

impl FromStr for Fsync {
    type Err = ParseFsyncError;

    fn from_str(text: &str) -> Result<Self, ParseFsyncError> {
        let wrong = || ParseFsyncError(text.chars().take(64).collect());
        match text {
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            "interval" => Ok(Self::Interval(DEFAULT_INTERVAL_MS)),
            _ => match text.strip_prefix("interval:").and_then(|ms| ms.parse().ok()) {
                Some(ms) if ms > 0 => Ok(Self::Interval(ms)),
                _ => Err(wrong()),
            },
        }
    }
}

/// The source of files to sync.
pub(super) trait SyncTarget: Send + Sync + 'static {
    /// Returns the file to sync, and the number of the last entry that this sync covers.
    fn target(&self) -> (Arc<File>, u64);
    /// Reports a failed sync. Entries may be lost, so the target must accept no more.
    fn fail(&self, problem: &SyncError);
}

/// The syncing thread and the state shared with its waiters.
#[derive(Debug)]
pub(super) struct Syncer {
    policy: Fsync,
    shared: Arc<SyncState>,
    /// `None` if the policy is `never`.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct SyncState {
    /// Requests to the thread.
    asked: Mutex<PendingSync>,
    /// Wakes the thread.
    wake: Condvar,
    /// Progress of the thread.
    synced: watch::Sender<SyncProgress>,
    /// Number of syncs so far.
    count: AtomicU64,
}

#[derive(Debug, Default)]
struct PendingSync {
    /// Entry up to which a sync is requested.
    up_to: u64,
    /// Requests a last sync and the end of the thread.
    stop: bool,
}

#[derive(Debug, Default)]
struct SyncProgress {
    /// Entry up to which everything is on stable storage.
    up_to: u64,
    /// Set once a sync has failed. Nothing more is synced after that.
    failed: Option<SyncError>,
}

impl Syncer {
    pub(super) fn start(
        policy: Fsync,
        synced_up_to: u64,
        target: Arc<dyn SyncTarget>,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(SyncState {
            asked: Mutex::default(),
            wake: Condvar::new(),
            synced: watch::Sender::new(SyncProgress { up_to: synced_up_to, failed: None }),
            count: AtomicU64::new(0),
        });
        let thread = match policy {
            Fsync::Never => None,
            Fsync::Always | Fsync::Interval(_) => {
                let shared = Arc::clone(&shared);
                let run = move || shared.run(policy, &*target);
                Some(thread::Builder::new().name("journal-sync".to_owned()).spawn(run)?)
            }
        };
        Ok(Self { policy, shared, thread })
    }

    /// Waits until the entry is as safe as the policy promises. Returns at once unless that is
    /// `always`.
    pub(super) async fn durable(&self, number: u64) -> Result<(), SyncError> {
        if self.policy != Fsync::Always {
            return Ok(());
        }
        let mut synced = self.shared.synced.subscribe();
        let is_settled = |synced: &SyncProgress| synced.up_to >= number || synced.failed.is_some();
        if !is_settled(&synced.borrow()) {
            let mut asked = self.shared.asked();
            asked.up_to = asked.up_to.max(number);
            self.shared.wake.notify_one();
        }
        let closed = |_| SyncError("the journal was closed".to_owned());
        let synced = synced.wait_for(is_settled).await.map_err(closed)?;
        match &synced.failed {
            Some(problem) if synced.up_to < number => Err(problem.clone()),
            _ => Ok(()),
        }
    }

    /// Returns the number of syncs so far.
    #[cfg(test)]
    pub(super) fn count(&self) -> u64 {
        self.shared.count.load(Ordering::Relaxed)
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.asked().stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread panics only on a bug, and the journal is closing anyway.
            let _ = thread.join();
        }
    }
}

impl SyncState {
    fn asked(&self) -> MutexGuard<'_, PendingSync> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, policy: Fsync, target: &dyn SyncTarget) {
        let mut done = self.synced.borrow().up_to;
        loop {
            let stop = self.wait(policy, done);
            let (file, up_to) = target.target();
            if up_to > done {
                self.count.fetch_add(1, Ordering::Relaxed);
                if let Err(problem) = file.sync_data() {
                    // The system may have dropped the pages that it could not write, so a later
                    // sync that succeeds would prove nothing.
                    let problem = SyncError(problem.to_string());
                    target.fail(&problem);
                    self.synced.send_modify(|synced| synced.failed = Some(problem));
                    return;
                }
                done = up_to;
                self.synced.send_modify(|synced| synced.up_to = up_to);
            }
            if stop {
                return;
            }
        }
    }

    /// Waits until it is time to sync. Returns true for the last sync.
    fn wait(&self, policy: Fsync, done: u64) -> bool {
        let asked = self.asked();
        let asked = match policy {
            Fsync::Interval(ms) => {
                let ms = Duration::from_millis(ms);
                self.wake
                    .wait_timeout_while(asked, ms, |asked| !asked.stop)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
            Fsync::Always | Fsync::Never => self
                .wake
                .wait_while(asked, |asked| !asked.stop && asked.up_to <= done)
                .unwrap_or_else(PoisonError::into_inner),
        };
        asked.stop
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_from_text() {
        for (text, policy) in [
            ("always", Some(Fsync::Always)),
            ("never", Some(Fsync::Never)),
            ("interval", Some(Fsync::Interval(1_000))),
            ("interval:250", Some(Fsync::Interval(250))),
            ("interval:0", None),
            ("interval:", None),
            ("Always", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<Fsync>().ok(), policy, "{text:?}");
        }
    }
}
