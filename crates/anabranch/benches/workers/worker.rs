//! A worker in a process of its own: this program again, told by its environment to read.

use anabranch::clock::Clock;
use anabranch::consumer::{Consumer, Delivery, HandlerError};
use anabranch::lease::SqliteStore;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;

const NAME: &str = "ANABRANCH_BENCH_WORKER";
const FOLDER: &str = "ANABRANCH_BENCH_FOLDER";
const STREAM: &str = "ANABRANCH_BENCH_STREAM";

/// For how long a worker may be silent: what a failover waits for.
pub(crate) const LEASE_TIME_MS: u64 = 3_000;

/// What a worker is told.
pub(crate) struct Job {
    /// Its name, which stands behind each of its deliveries.
    name: String,
    /// Where leases and deliveries are kept.
    folder: PathBuf,
    /// The stream to read.
    stream: String,
}

impl Job {
    /// The job of this process, if it is a worker.
    pub(crate) fn from_env() -> Option<Self> {
        let read = |name| std::env::var(name).ok();
        Some(Self { name: read(NAME)?, folder: read(FOLDER)?.into(), stream: read(STREAM)? })
    }
}

/// Where the leases are kept.
pub(crate) fn leases(folder: &Path) -> PathBuf {
    folder.join("leases.db")
}

/// Where all workers write their deliveries: `time key number worker`, one line each.
pub(crate) fn log(folder: &Path) -> PathBuf {
    folder.join("deliveries.log")
}

/// Starts a worker, with so many threads in its runtime; as many as there are cores by default.
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
        .with_settings(|settings| settings.lease_time = LEASE_TIME_MS)
        .each(move |record: Delivery| {
            let (key, data) = (&record.partition_key, record.data.escape_ascii());
            let line = format!("{} {key} {data} {name}\n", clock.wall_ms());
            // One write, so that a line is never cut by a kill.
            std::future::ready((&*log).write_all(line.as_bytes()).map_err(HandlerError::from))
        });
    Ok(consumer.run().await?)
}
