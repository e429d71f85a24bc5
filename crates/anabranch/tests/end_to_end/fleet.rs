//! A local stream over HTTP, workers as processes, and the oracle for their logged deliveries.

use crate::child;
use crate::network::Transport;
use anabranch::stream::AwsKinesis;
use anabranch::stream::api::{PutEntry, ShardFilter, StreamApi};
use anabranch_local::op::{StreamTarget, create_stream, merge_shards, split_shard};
use anabranch_local::{EngineOptions, Local};
use anabranch_model::ids::StreamName;
use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(crate) const KEYS: usize = 20;

pub(crate) struct ProcessFleet {
    local: Local,
    wire: Transport,
    /// Client with which the test puts: the library's own.
    api: AwsKinesis,
    stream: StreamName,
    folder: tempfile::TempDir,
    workers: BTreeMap<&'static str, Child>,
    /// Number of records put for each key; they are numbered from 0.
    put: usize,
}

/// A failing test leaves no process behind.
impl Drop for ProcessFleet {
    fn drop(&mut self) {
        for worker in self.workers.values_mut() {
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}

impl ProcessFleet {
    pub(crate) async fn start(wire: Transport, shards: i64) -> Self {
        let local = wire.start(Local::builder().with_options(EngineOptions::instant())).await;
        let request = create_stream::Request {
            stream_name: Some("orders".to_owned()),
            shard_count: Some(shards),
            ..Default::default()
        };
        local.engine().create_stream(&request).unwrap();
        Self {
            api: AwsKinesis::new(&wire.config(&local)),
            local,
            wire,
            stream: "orders".into(),
            folder: tempfile::tempdir().unwrap(),
            workers: BTreeMap::new(),
            put: 0,
        }
    }

    /// Returns a client of the stream.
    pub(crate) fn kinesis(&self) -> AwsKinesis {
        AwsKinesis::new(&self.wire.config(&self.local))
    }

    /// Starts a worker.
    pub(crate) fn spawn(&mut self, name: &'static str) {
        let text = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
        let told = [
            (child::LEASES, text(self.folder.path().join("leases.db"))),
            (child::LOG, text(self.log())),
            (child::STREAM, self.stream.as_str().to_owned()),
        ];
        self.spawn_test(name, "child::child", &told);
    }

    /// Starts a worker: a test of this program, which reads because of its environment.
    pub(crate) fn spawn_test(&mut self, name: &'static str, test: &str, told: &[(&str, String)]) {
        self.spawn_into(name, test, told, Stdio::null());
    }

    /// Starts a worker whose output can be read.
    pub(crate) fn spawn_printing(
        &mut self,
        name: &'static str,
        test: &str,
        told: &[(&str, String)],
    ) {
        let output = std::fs::File::create(self.folder.path().join(name)).unwrap();
        self.spawn_into(name, test, told, output.into());
    }

    /// Returns the output of such a worker so far.
    pub(crate) fn printed(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    /// Returns true if a worker has not ended.
    pub(crate) fn runs(&mut self, name: &str) -> bool {
        self.workers.get_mut(name).unwrap().try_wait().unwrap().is_none()
    }

    fn spawn_into(
        &mut self,
        name: &'static str,
        test: &str,
        told: &[(&str, String)],
        output: Stdio,
    ) {
        let mut worker = Command::new(std::env::current_exe().unwrap());
        let mut endpoint = self.local.endpoint();
        if let (Transport::Tls, Some(pem)) = (self.wire, self.local.ca_pem()) {
            let bundle = self.folder.path().join("ca.pem");
            std::fs::write(&bundle, pem).unwrap();
            worker.env("AWS_CA_BUNDLE", bundle);
            endpoint = self.local.tls_endpoint().unwrap();
        }
        let worker = worker
            .args(["--exact", test, "--nocapture"])
            .current_dir(self.folder.path())
            .envs(told.iter().cloned())
            .env(child::NAME, name)
            .env("AWS_ENDPOINT_URL_KINESIS", endpoint)
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", "local")
            .env("AWS_SECRET_ACCESS_KEY", "local")
            .stdout(output)
            .spawn()
            .unwrap();
        self.workers.insert(name, worker);
    }

    fn log(&self) -> std::path::PathBuf {
        self.folder.path().join("deliveries.log")
    }

    /// Returns every delivery in order: key, number and worker.
    pub(crate) fn delivered(&self) -> Vec<(String, usize, String)> {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        let record = |line: &str| {
            let mut words = line.split(' ').map(str::to_owned);
            let mut word = || words.next().unwrap();
            (word(), word().parse().unwrap(), word())
        };
        text.lines().map(record).collect()
    }

    /// Sends a signal to a worker.
    pub(crate) fn signal(&self, name: &str, signal: &str) {
        let id = self.workers[name].id().to_string();
        let sent = Command::new("kill").args([format!("-{signal}"), id]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until a worker ends, and returns its exit code.
    pub(crate) fn exit_of(&mut self, name: &'static str) -> Option<i32> {
        self.workers.remove(name).unwrap().wait().unwrap().code()
    }

    /// Puts rounds of one record for each key, with pauses, through the library's own client.
    pub(crate) async fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            for key in 0..KEYS {
                let entry = PutEntry {
                    key: format!("key-{key}").into(),
                    hash: None,
                    data: self.put.to_string().into(),
                };
                self.api.put_record(&self.stream, &entry, None).await.unwrap();
            }
            self.put += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn open(&self) -> Vec<anabranch_model::lineage::Shard> {
        let list = self.api.list_shards(&self.stream, ShardFilter::AtLatest).await.unwrap();
        let mut shards = list.shards;
        shards.sort_by_key(|shard| shard.range);
        shards
    }

    pub(crate) async fn split(&self, at: usize) {
        let shard = &self.open().await[at];
        let (start, end) = (shard.range.start().0, shard.range.end().0);
        let request = split_shard::Request {
            stream: StreamTarget::named("orders"),
            shard_to_split: Some(shard.id.to_string()),
            new_starting_hash_key: Some((start + (end - start) / 2 + 1).to_string()),
        };
        self.local.engine().split_shard(&request).unwrap();
    }

    pub(crate) async fn merge(&self, at: usize) {
        let open = self.open().await;
        let request = merge_shards::Request {
            stream: StreamTarget::named("orders"),
            shard_to_merge: Some(open[at].id.to_string()),
            adjacent_shard_to_merge: Some(open[at + 1].id.to_string()),
        };
        self.local.engine().merge_shards(&request).unwrap();
    }

    pub(crate) async fn until_all_seen(&self) {
        for _ in 0..600 {
            let seen = self.delivered().into_iter();
            let mut seen: Vec<_> = seen.map(|(key, number, _)| (key, number)).collect();
            seen.sort();
            seen.dedup();
            if seen.len() == self.put * KEYS {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let seen = self.delivered().len();
        panic!("{seen} deliveries, and {} records were put", self.put * KEYS);
    }

    /// Asserts that nothing is missing, and that first deliveries of each key were in order.
    pub(crate) fn check(mut self) {
        for worker in self.workers.values_mut() {
            let _ = worker.wait();
        }
        let delivered = self.delivered();
        let mut next: BTreeMap<&str, usize> = BTreeMap::new();
        for (key, number, _) in &delivered {
            let next = next.entry(key).or_default();
            assert!(*number <= *next, "{key}: {number} came before {next}");
            *next = (*next).max(number + 1);
        }
        assert_eq!(next.len(), KEYS);
        assert!(next.values().all(|count| *count == self.put), "{next:?} of {}", self.put);
        println!("{} deliveries of {} records", delivered.len(), self.put * KEYS);
    }
}
