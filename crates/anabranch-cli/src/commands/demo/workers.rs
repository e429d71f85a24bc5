//! Worker processes of the demo: started, stopped gracefully or killed.

use super::stream::DemoStream;
use super::{NAME, worker};
use crate::connection::ConnectionSettings;
use crate::failure::CommandFailure;
use anabranch::lease::{AnyStore, LeaseStore, StoreAddress};
use anabranch_model::ids::ShardId;
use anabranch_model::lease::Lease;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, ChildStdin, Command};

/// Time for a worker to stop gracefully.
const STOP: Duration = Duration::from_secs(15);
/// Time for the initial distribution of the shards.
const SHARING: Duration = Duration::from_secs(30);

/// The worker processes. Dropping this kills the remaining ones.
pub(super) struct DemoWorkers {
    /// Endpoint of the local stream.
    endpoint: String,
    /// Folder of the lease store and the delivery log.
    folder: PathBuf,
    /// The lease store, opened for reading on first use.
    store: Option<AnyStore>,
    /// Running workers by name.
    workers: BTreeMap<String, Child>,
    /// Standard inputs of the workers, kept open while the demo runs: a worker whose input closes
    /// exits at once.
    lifelines: Vec<ChildStdin>,
    /// Number of workers started.
    started: usize,
}

impl DemoWorkers {
    pub(super) fn new(endpoint: String, folder: &Path) -> Self {
        Self {
            endpoint,
            folder: folder.to_owned(),
            store: None,
            workers: BTreeMap::new(),
            lifelines: Vec::new(),
            started: 0,
        }
    }

    /// Starts another worker. Returns its name.
    pub(super) fn start_worker(&mut self) -> Result<String, CommandFailure> {
        self.started += 1;
        let name = format!("worker-{}", self.started);
        let program = std::env::current_exe().map_err(|error| {
            CommandFailure::usage(format!("the path of this program is unknown: {error}"))
        })?;
        let mut child = Command::new(program)
            .args(["demo-worker", "--name", &name, "--stream", NAME, "--at", &self.endpoint])
            .arg("--rows")
            .arg(self.folder.join("leases.db"))
            .arg("--log")
            .arg(self.folder.join("deliveries.log"))
            // The user's own AWS account must not be used.
            .env_remove("AWS_PROFILE")
            .env_remove("AWS_CA_BUNDLE")
            .env("NO_PROXY", "*")
            .env("AWS_ACCESS_KEY_ID", "local")
            .env("AWS_SECRET_ACCESS_KEY", "local")
            .env("AWS_REGION", "us-east-1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Ctrl-C goes to the demo only, which stops its workers itself.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| {
                CommandFailure::usage(format!("a worker can't be started: {error}"))
            })?;
        self.lifelines.extend(child.stdin.take());
        self.workers.insert(name.clone(), child);
        Ok(name)
    }

    /// Returns the process id of a worker.
    pub(super) fn process_of(&self, name: &str) -> u32 {
        self.workers.get(name).and_then(Child::id).unwrap_or(0)
    }

    /// Returns the names of the running workers.
    pub(super) fn names(&self) -> Vec<String> {
        self.workers.keys().cloned().collect()
    }

    /// Returns the name of the worker that owns a lease row.
    fn name_of(&self, owner: &str) -> Option<String> {
        // An owner consists of the application, the process id and random digits.
        let process = owner.strip_prefix(NAME)?.strip_prefix('-')?.split('/').next()?;
        let process: u32 = process.parse().ok()?;
        self.workers.iter().find(|(_, child)| child.id() == Some(process)).map(|(n, _)| n.clone())
    }

    /// Returns the unfinished shards that a worker owns.
    pub(super) async fn shards_of(&mut self, name: &str) -> Result<Vec<ShardId>, CommandFailure> {
        let rows = self.rows().await?;
        let mine = |lease: &&Lease| {
            let owner = lease.owner.as_ref().and_then(|owner| self.name_of(owner.as_str()));
            !lease.is_ended() && owner.as_deref() == Some(name)
        };
        Ok(rows.iter().filter(mine).map(|lease| lease.key.shard.clone()).collect())
    }

    async fn rows(&mut self) -> Result<Vec<Lease>, CommandFailure> {
        if self.store.is_none() {
            let address = StoreAddress::Sqlite(self.folder.join("leases.db"));
            let store = ConnectionSettings::default().store(&address, NAME).await?;
            store.prepare().await.map_err(CommandFailure::result)?;
            self.store = Some(store);
        }
        match &self.store {
            Some(store) => {
                let listing = store.list(&NAME.into()).await.map_err(CommandFailure::result)?;
                Ok(listing.rows)
            }
            None => Ok(Vec::new()),
        }
    }

    /// Waits until each worker owns a shard, so that a stop has something to hand over.
    pub(super) async fn until_shared(&mut self, stream: &DemoStream) -> Result<(), CommandFailure> {
        let all = stream.lineage().await?.open_shards().count();
        let pause = Duration::from_millis(100);
        for _ in 0..SHARING.as_millis() / pause.as_millis() {
            let mut owned = Vec::new();
            for name in self.names() {
                owned.push(self.shards_of(&name).await?.len());
            }
            if owned.iter().all(|count| *count > 0) && owned.iter().sum::<usize>() == all {
                return Ok(());
            }
            if let Some(name) = self.exited_worker()? {
                return Err(CommandFailure::result(format!("{name} exited unexpectedly")));
            }
            tokio::time::sleep(pause).await;
        }
        Err(CommandFailure::result("the workers did not share the shards in time"))
    }

    /// Returns a worker that exited by itself, if any.
    fn exited_worker(&mut self) -> Result<Option<String>, CommandFailure> {
        for (name, child) in &mut self.workers {
            if child.try_wait().map_err(CommandFailure::result)?.is_some() {
                return Ok(Some(name.clone()));
            }
        }
        Ok(None)
    }

    /// Kills a worker.
    pub(super) async fn kill(&mut self, name: &str) -> Result<(), CommandFailure> {
        if let Some(mut child) = self.workers.remove(name) {
            child.kill().await.map_err(CommandFailure::result)?;
        }
        Ok(())
    }

    /// Stops a worker gracefully and waits for its exit.
    pub(super) async fn stop(&mut self, name: &str) -> Result<(), CommandFailure> {
        let Some(child) = self.workers.remove(name) else { return Ok(()) };
        terminate(&child)?;
        stopped(name, child).await
    }

    /// Stops all remaining workers concurrently.
    pub(super) async fn stop_all(&mut self) -> Result<(), CommandFailure> {
        let workers = std::mem::take(&mut self.workers);
        for child in workers.values() {
            terminate(child)?;
        }
        for (name, child) in workers {
            stopped(&name, child).await?;
        }
        Ok(())
    }
}

/// Waits until a worker has stopped gracefully.
async fn stopped(name: &str, mut child: Child) -> Result<(), CommandFailure> {
    match tokio::time::timeout(STOP, child.wait()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => {
            Err(CommandFailure::result(format!("{name} did not stop gracefully: {status}")))
        }
        Ok(Err(error)) => Err(CommandFailure::result(error)),
        Err(_) => Err(CommandFailure::result(format!("{name} did not stop within {STOP:?}"))),
    }
}

/// Sends SIGTERM, unless the process has ended.
fn terminate(child: &Child) -> Result<(), CommandFailure> {
    use rustix::process::{Pid, Signal, kill_process};
    match child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
        Some(id) => kill_process(id, Signal::TERM).map_err(CommandFailure::result),
        None => Ok(()),
    }
}

/// Time to wait for the takeover from a killed worker.
pub(super) const TAKE_OVER_MS: u64 = worker::LEASE_MS * 4;
