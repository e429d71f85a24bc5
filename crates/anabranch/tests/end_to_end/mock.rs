//! Third-party servers: records in kinesis-mock, leases in DynamoDB Local, and a stream that is
//! split and merged while two workers read it.

use crate::dynamodb_server::{Server, config_for};
use anabranch::consumer::{Consumer, Delivery, HandlerError};
use anabranch::lease::DynamoDbStore;
use anabranch::stream::AwsKinesis;
use anabranch::stream::api::{PutEntry, ShardFilter, StreamApi};
use anabranch_model::ids::StreamName;
use anabranch_model::lineage::Shard;
use aws_sdk_kinesis::Client;
use aws_types::SdkConfig;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

/// The folder of the package `kinesis-local`; set by `cargo xtask test`.
const FOLDER: &str = "ANABRANCH_KINESIS_MOCK";
/// The Node executable that runs it.
const NODE: &str = "ANABRANCH_NODE";
const KEYS: usize = 20;
const STREAM: &str = "orders";

/// kinesis-mock as a process of its own, killed by its pid when this is dropped.
struct KinesisMock {
    process: Child,
    port: u16,
}

impl KinesisMock {
    /// Starts it, or returns `None` and prints a line if it is not installed.
    async fn start(test: &str) -> Option<Self> {
        let Some(folder) = std::env::var_os(FOLDER) else {
            println!("skipped {test}: {FOLDER} is not set; `cargo xtask test` sets it");
            return None;
        };
        let node = std::env::var_os(NODE).unwrap_or_else(|| "node".into());
        let (port, tls) = (free_port(), free_port());
        let process = Command::new(node)
            .arg("main.js")
            .current_dir(Path::new(&folder))
            .env("KINESIS_MOCK_PLAIN_PORT", port.to_string())
            .env("KINESIS_MOCK_TLS_PORT", tls.to_string())
            .env("SHARD_LIMIT", "50")
            .env("LOG_LEVEL", "ERROR")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("node starts");
        let mock = Self { process, port };
        for _ in 0..600 {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Some(mock);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("kinesis-mock does not answer on port {port}");
    }

    /// Returns a configuration for Kinesis clients.
    fn config(&self) -> SdkConfig {
        let http = aws_smithy_http_client::Builder::new().build_http();
        let config = config_for(&format!("http://127.0.0.1:{}", self.port));
        config.to_builder().http_client(http).build()
    }
}

impl Drop for KinesisMock {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// The stream, and the records that were put and delivered.
struct MockFixture {
    client: Client,
    api: AwsKinesis,
    stream: StreamName,
    /// Key and number of each delivery, in order.
    seen: Arc<Mutex<Vec<(String, usize)>>>,
    /// Number of rounds of one record for each key that were put.
    rounds: usize,
}

impl MockFixture {
    async fn create(config: &SdkConfig, shards: i32) -> Self {
        let client = Client::new(config);
        let create = client.create_stream().stream_name(STREAM).shard_count(shards);
        create.send().await.unwrap();
        let (api, stream) = (AwsKinesis::new(config), STREAM.into());
        let world = Self { client, api, stream, seen: Arc::default(), rounds: 0 };
        world.until_active().await;
        world
    }

    async fn until_active(&self) {
        use anabranch::stream::api::StreamStatus;
        for _ in 0..600 {
            let summary = self.api.describe(&self.stream).await;
            if summary.is_ok_and(|summary| summary.status == StreamStatus::Active) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the stream never became active");
    }

    async fn put(&mut self, rounds: usize) {
        for _ in 0..rounds {
            for key in 0..KEYS {
                let (key, data) = (format!("key-{key}").into(), self.rounds.to_string().into());
                let entry = PutEntry { key, hash: None, data };
                self.api.put_record(&self.stream, &entry, None).await.unwrap();
            }
            self.rounds += 1;
        }
    }

    async fn open(&self) -> Vec<Shard> {
        let list = self.api.list_shards(&self.stream, ShardFilter::AtLatest).await.unwrap();
        let mut shards = list.shards;
        shards.sort_by_key(|shard| shard.range);
        shards
    }

    async fn split(&self, at: usize) {
        let shard = &self.open().await[at];
        let middle = shard.range.start().0 / 2 + shard.range.end().0 / 2;
        let split = self.client.split_shard().stream_name(STREAM);
        let split = split.shard_to_split(shard.id.as_str());
        split.new_starting_hash_key(middle.to_string()).send().await.unwrap();
        self.until_active().await;
    }

    async fn merge(&self, at: usize) {
        let open = self.open().await;
        let merge = self.client.merge_shards().stream_name(STREAM);
        let merge = merge.shard_to_merge(open[at].id.as_str());
        merge.adjacent_shard_to_merge(open[at + 1].id.as_str()).send().await.unwrap();
        self.until_active().await;
    }

    fn consumer(
        &self,
        leases: DynamoDbStore,
    ) -> impl Future<Output = Result<(), anabranch::consumer::RunError>> + Send + use<> {
        let seen = Arc::clone(&self.seen);
        let consumer = Consumer::new(STREAM, "mailer")
            .with_kinesis(self.api.clone())
            .with_leases(leases)
            .with_settings(|settings| settings.lease_time = Duration::from_secs(5))
            .each(move |record: Delivery| {
                let number = std::str::from_utf8(&record.data).unwrap().parse().unwrap();
                seen.lock().unwrap().push((record.partition_key.to_string(), number));
                std::future::ready(Ok::<(), HandlerError>(()))
            });
        consumer.run_until(std::future::pending())
    }

    async fn until_all_seen(&self) {
        for _ in 0..900 {
            let mut seen = self.seen.lock().unwrap().clone();
            seen.sort();
            seen.dedup();
            if seen.len() == self.rounds * KEYS {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{} of {}", self.seen.lock().unwrap().len(), self.rounds * KEYS);
    }

    /// Asserts that first deliveries of each key were in order. Returns the number of duplicates.
    fn check(&self) -> usize {
        let seen = self.seen.lock().unwrap();
        let mut next: BTreeMap<&str, usize> = BTreeMap::new();
        let mut again = 0;
        for (key, number) in seen.iter() {
            let next = next.entry(key).or_default();
            assert!(number <= next, "{key}: {number} came before {next}");
            again += usize::from(number < next);
            *next = (*next).max(number + 1);
        }
        again
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_kinesis_mock_is_read_through_splits_and_merges_in_order() {
    let test = "kinesis-mock with DynamoDB Local";
    let (Some(mock), Some(tables)) = (KinesisMock::start(test).await, Server::java(test).await)
    else {
        return;
    };
    let mut world = MockFixture::create(&mock.config(), 2).await;
    let leases = || DynamoDbStore::native(&tables.config(), "mailer-leases");
    let mut workers = JoinSet::new();
    workers.spawn(world.consumer(leases()));
    world.put(5).await;
    world.until_all_seen().await;
    workers.spawn(world.consumer(leases()));
    world.split(0).await;
    world.put(5).await;
    world.merge(1).await;
    world.put(5).await;
    world.split(1).await;
    world.put(5).await;
    world.until_all_seen().await;
    // A crash: the next worker continues at the checkpoints.
    workers.shutdown().await;
    world.put(5).await;
    workers.spawn(world.consumer(leases()));
    world.until_all_seen().await;
    let again = world.check();
    println!("{} records of {KEYS} keys, {again} came again after the crash", world.rounds * KEYS);
    workers.shutdown().await;
}
