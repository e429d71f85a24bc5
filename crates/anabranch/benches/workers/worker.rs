//! A worker in its own process: the same executable, configured by environment variables.

use anabranch::clock::Clock;
use anabranch::consumer::{Consumer, Delivery, HandlerError};
use anabranch::lease::SqliteStore;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "ANABRANCH_BENCH_WORKER";
const FOLDER: &str = "ANABRANCH_BENCH_FOLDER";
const STREAM: &str = "ANABRANCH_BENCH_STREAM";

/// Lease time: a failover begins after this long without a heartbeat.
pub(crate) const LEASE_TIME_MS: u64 = 3_000;

/// Configuration of a worker process.
pub(crate) struct Job {
    /// Worker name, written with each of its deliveries.
    name: String,
    /// Folder of the lease store and the delivery log.
    folder: PathBuf,
    stream: String,
}

impl Job {
    /// Returns the configuration of this process, or `None` if it is not a worker.
    pub(crate) fn from_env() -> Option<Self> {
        let read = |name| std::env::var(name).ok();
        Some(Self { name: read(NAME)?, folder: read(FOLDER)?.into(), stream: read(STREAM)? })
    }
}

/// Returns the path of the lease store.
pub(crate) fn leases(folder: &Path) -> PathBuf {
    folder.join("leases.db")
}

/// Returns the path of the log of all deliveries, with one line `time key number worker` each.
pub(crate) fn log(folder: &Path) -> PathBuf {
    folder.join("deliveries.log")
}

/// Starts a worker process with `threads` runtime threads, by default one per core.
pub(crate) fn spawn(
    name: &str,
    folder: &Path,
    stream: &str,
    endpoint: &str,
    threads: Option<usize>,
) -> Result<Child, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    if let Some(threads) = threads {
        command.env("TOKIO_WORKER_THREADS", threads.to_string());
    }
    command
        .env(NAME, name)
        .env(FOLDER, folder)
        .env(STREAM, stream)
        .env("AWS_ENDPOINT_URL_KINESIS", endpoint)
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "local")
        .env("AWS_SECRET_ACCESS_KEY", "local")
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("a worker did not start: {error}"))
}

/// Reads until it is stopped.
pub(crate) async fn run(job: Job) -> ExitCode {
    match read(job).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("worker: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn read(job: Job) -> Result<(), HandlerError> {
    let log = OpenOptions::new().append(true).create(true).open(log(&job.folder))?;
    let (log, clock, name) = (Arc::new(log), Clock::machine(), job.name);
    let kinesis = anabranch::stream::aws::from_env().await?;
    let consumer = Consumer::new(job.stream, "bench")
        .with_kinesis(kinesis)
        .with_leases(SqliteStore::open(leases(&job.folder), "bench")?)
        .with_settings(|settings| settings.lease_time = Duration::from_millis(LEASE_TIME_MS))
        .each(move |record: Delivery| {
            let (key, data) = (&record.partition_key, record.data.escape_ascii());
            let line = format!("{} {key} {data} {name}\n", clock.wall_ms());
            // Written in one call, so that a kill cannot truncate a line.
            std::future::ready((&*log).write_all(line.as_bytes()).map_err(HandlerError::from))
        });
    Ok(consumer.run().await?)
}
