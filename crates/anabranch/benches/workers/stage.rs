//! Test environment: a local stream over HTTP, a continuous load, worker processes, and the check
//! of all deliveries.

use crate::worker;
use anabranch::clock::Clock;
use anabranch::stream::AwsKinesis;
use anabranch::stream::api::{PutEntry, StreamApi};
use anabranch_local::op::{StreamTarget, create_stream, split_shard};
use anabranch_local::{EngineOptions, Local};
use anabranch_model::ids::StreamName;
use std::collections::BTreeMap;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// Number of keys that are put continuously.
pub(crate) const KEYS: usize = 64;
/// Pause between two rounds of one record per key.
const ROUND: Duration = Duration::from_millis(50);
const STREAM: &str = "orders";

/// One line of the delivery log.
pub(crate) struct DeliveryLine {
    /// Time of the delivery, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// Key of the record.
    pub(crate) key: usize,
    /// Number of the record within its key, from 0.
    pub(crate) number: usize,
    /// Name of the worker.
    pub(crate) by: String,
}

/// A local stream, its load, and its workers.
pub(crate) struct WorkerFixture {
    local: Local,
    folder: tempfile::TempDir,
    clock: Clock,
    workers: BTreeMap<&'static str, Child>,
    /// Number of rounds put so far.
    put: Arc<AtomicUsize>,
    puts: JoinSet<Result<(), String>>,
}

impl WorkerFixture {
    /// Creates a stream with `shards` shards and no records.
    pub(crate) async fn new(shards: i64) -> Result<Self, String> {
        let local = Local::builder().with_options(EngineOptions::instant()).start().await;
        let local = local.map_err(|error| error.to_string())?;
        let request = create_stream::Request {
            stream_name: Some(STREAM.to_owned()),
            shard_count: Some(shards),
            ..Default::default()
        };
        local.engine().create_stream(&request).map_err(|error| error.to_string())?;
        Ok(Self {
            local,
            folder: tempfile::tempdir().map_err(|error| error.to_string())?,
            clock: Clock::machine(),
            workers: BTreeMap::new(),
            put: Arc::default(),
            puts: JoinSet::new(),
        })
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.wall_ms()
    }

    /// Starts a worker.
    pub(crate) fn spawn(&mut self, name: &'static str) -> Result<(), String> {
        self.spawn_with(name, None)
    }

    /// Starts a worker with `threads` runtime threads.
    pub(crate) fn spawn_with(
        &mut self,
        name: &'static str,
        threads: Option<usize>,
    ) -> Result<(), String> {
        let (folder, endpoint) = (self.folder.path(), self.local.endpoint());
        let worker = worker::spawn(name, folder, STREAM, &endpoint, threads)?;
        self.workers.insert(name, worker);
        Ok(())
    }

    /// Returns the process id of a worker.
    pub(crate) fn pid(&self, name: &str) -> u32 {
        self.workers[name].id()
    }

    /// Sends a terminating signal to a worker. Returns the time in milliseconds since 1970.
    pub(crate) fn end(&mut self, name: &str, signal: &str) -> Result<u64, String> {
        let now_ms = self.now_ms();
        let words = [format!("-{signal}"), self.pid(name).to_string()];
        let sent = Command::new("kill").args(words).status().map_err(|error| error.to_string())?;
        if !sent.success() {
            return Err(format!("{name} was gone before its signal"));
        }
        if let Some(mut worker) = self.workers.remove(name) {
            // Waited for in the background, so that it does not affect the measurement.
            self.puts.spawn_blocking(move || worker.wait().map(drop).map_err(|e| e.to_string()));
        }
        Ok(now_ms)
    }

    /// Starts to put records of all keys.
    pub(crate) fn begin_to_put(&mut self) {
        let (api, put) = (AwsKinesis::new(&self.local.sdk_config()), Arc::clone(&self.put));
        self.puts.spawn(async move {
            let stream = StreamName::from(STREAM);
            loop {
                let number = put.load(Ordering::SeqCst);
                let entry = |key: usize| PutEntry {
                    key: key.to_string().into(),
                    hash: None,
                    data: number.to_string().into(),
                };
                let entries: Vec<_> = (0..KEYS).map(entry).collect();
                let placed = api.put_records(&stream, &entries).await;
                placed.map_err(|error| error.to_string())?;
                put.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(ROUND).await;
            }
        });
    }

    /// Returns the number of rounds put so far.
    pub(crate) fn rounds(&self) -> usize {
        self.put.load(Ordering::SeqCst)
    }

    /// Splits the first shard in the middle of its hash range.
    pub(crate) fn split(&self) -> Result<(), String> {
        let request = split_shard::Request {
            stream: StreamTarget::named(STREAM),
            shard_to_split: Some("shardId-000000000000".to_owned()),
            new_starting_hash_key: Some((1_u128 << 127).to_string()),
        };
        self.local.engine().split_shard(&request).map_err(|error| error.to_string()).map(drop)
    }

    /// Returns all deliveries so far, in log order.
    pub(crate) fn lines(&self) -> Vec<DeliveryLine> {
        let text = std::fs::read_to_string(worker::log(self.folder.path())).unwrap_or_default();
        let line = |line: &str| {
            let mut words = line.split(' ');
            Some(DeliveryLine {
                at_ms: words.next()?.parse().ok()?,
                key: words.next()?.parse().ok()?,
                number: words.next()?.parse().ok()?,
                by: words.next()?.to_owned(),
            })
        };
        text.lines().filter_map(line).collect()
    }

    /// Waits until `say` returns a value for the deliveries so far. `what` describes the condition.
    pub(crate) async fn until<T>(
        &self,
        what: &str,
        say: impl Fn(&[DeliveryLine]) -> Option<T>,
    ) -> Result<T, String> {
        let deadline_ms = self.clock.now_ms() + 60_000;
        while self.clock.now_ms() < deadline_ms {
            if let Some(said) = say(&self.lines()) {
                return Ok(said);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(format!("it never came true that {what}"))
    }

    /// Stops everything and checks the deliveries: the first deliveries of each key are in order,
    /// and no record is missing. Returns the number of duplicates.
    pub(crate) async fn close(mut self) -> Result<usize, String> {
        self.puts.abort_all();
        while self.puts.join_next().await.is_some() {}
        let rounds = self.rounds();
        let all = |lines: &[DeliveryLine]| {
            let mut next = [0; KEYS];
            for line in lines {
                if line.number == next[line.key] {
                    next[line.key] += 1;
                }
            }
            next.iter().all(|next| *next >= rounds).then_some(())
        };
        self.until("every record is delivered, each key in order", all).await?;
        let names: Vec<_> = self.workers.keys().copied().collect();
        for name in names {
            self.end(name, "TERM")?;
        }
        while self.puts.join_next().await.is_some() {}
        let mut next = [0; KEYS];
        let mut again = 0;
        for line in self.lines() {
            let next = &mut next[line.key];
            match line.number.cmp(next) {
                std::cmp::Ordering::Less => again += 1,
                std::cmp::Ordering::Equal => *next += 1,
                std::cmp::Ordering::Greater => {
                    return Err(format!("key {}: {} came before {next}", line.key, line.number));
                }
            }
        }
        Ok(again)
    }
}

impl Drop for WorkerFixture {
    fn drop(&mut self) {
        for worker in self.workers.values_mut() {
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}
