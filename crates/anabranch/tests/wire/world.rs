//! A local stream, a consumer that logs its deliveries, and the check of the log.

use crate::network::Transport;
use anabranch::consumer::{Consumer, Delivery, HandlerError};
use anabranch::lease::{LeaseStore, MemoryStore};
use anabranch::producer::{Outcome, Producer};
use anabranch::stream::AwsKinesis;
use anabranch_local::op::create_stream;
use anabranch_local::{EngineOptions, Local, LocalBuilder};
use aws_types::SdkConfig;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

pub(crate) const STREAM: &str = "orders";

/// Fetch mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fetching {
    Polling,
    FanOut,
}

impl Fetching {
    pub(crate) const ALL: [Self; 2] = [Self::Polling, Self::FanOut];
}

/// Starts a local stream over TLS.
pub(crate) async fn start(shards: i64, change: impl FnOnce(LocalBuilder) -> LocalBuilder) -> Local {
    let options = EngineOptions { shard_limit: 1_000, ..EngineOptions::instant() };
    let local = Transport::Tls.start(change(Local::builder().with_options(options))).await;
    create(&local, STREAM, shards, None);
    local
}

pub(crate) fn create(local: &Local, name: &str, shards: i64, max_record_kib: Option<i64>) {
    let request = create_stream::Request {
        stream_name: Some(name.to_owned()),
        shard_count: Some(shards),
        max_record_size_in_kib: max_record_kib,
        ..Default::default()
    };
    local.engine().create_stream(&request).unwrap();
}

/// Deliveries in order: key and data.
#[derive(Debug, Clone, Default)]
pub(crate) struct Deliveries(Arc<Mutex<Vec<(String, String)>>>);

impl Deliveries {
    pub(crate) fn add(&self, record: &Delivery) {
        let data = String::from_utf8_lossy(&record.data).into_owned();
        self.0.lock().unwrap().push((record.partition_key.as_str().to_owned(), data));
    }

    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Returns the number of keys that were delivered.
    pub(crate) fn keys(&self) -> usize {
        let seen = self.0.lock().unwrap();
        seen.iter().map(|(key, _)| key).collect::<std::collections::BTreeSet<_>>().len()
    }

    /// Waits until something holds for the deliveries.
    pub(crate) async fn until(&self, what: &str, limit: Duration, holds: impl Fn(&Self) -> bool) {
        let waited = async {
            while !holds(self) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let count = || format!("{what}: {} records, {} keys", self.count(), self.keys());
        tokio::time::timeout(limit, waited).await.unwrap_or_else(|_| panic!("{}", count()));
    }

    /// Checks that for each key the numbers from 0 to below `numbers` were delivered, first
    /// deliveries in order. Returns the number of duplicates.
    pub(crate) fn check(&self, keys: usize, numbers: usize) -> usize {
        let mut next = BTreeMap::<String, usize>::new();
        let mut again = 0;
        for (key, data) in &*self.0.lock().unwrap() {
            let next = next.entry(key.clone()).or_default();
            match data.parse::<usize>().unwrap() {
                number if number == *next => *next += 1,
                number if number < *next => again += 1,
                number => panic!("{key}: {number} came where {next} was due"),
            }
        }
        assert_eq!(next.len(), keys);
        assert!(next.values().all(|next| *next == numbers), "{next:?}");
        again
    }
}

/// A consumer that runs until it is dropped.
pub(crate) struct RunningConsumer(#[expect(dead_code, reason = "dropped")] JoinSet<()>);

/// Starts a consumer that logs its deliveries.
pub(crate) fn consume(config: &SdkConfig, fetching: Fetching) -> (Deliveries, RunningConsumer) {
    let leases = MemoryStore::new();
    consume_with(config, fetching, leases)
}

pub(crate) fn consume_with<S: LeaseStore>(
    config: &SdkConfig,
    fetching: Fetching,
    leases: S,
) -> (Deliveries, RunningConsumer) {
    let seen = Deliveries::default();
    let into = seen.clone();
    let running = run(config, fetching, leases, move |record: Delivery| {
        into.add(&record);
        std::future::ready(Ok::<(), HandlerError>(()))
    });
    (seen, running)
}

/// Starts a consumer with a handler.
pub(crate) fn run<S, H, F>(
    config: &SdkConfig,
    fetching: Fetching,
    leases: S,
    handler: H,
) -> RunningConsumer
where
    S: LeaseStore,
    H: Fn(Delivery) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    let mut consumer =
        Consumer::new(STREAM, "wire").with_kinesis(AwsKinesis::new(config)).with_leases(leases);
    if fetching == Fetching::FanOut {
        consumer = consumer.with_fan_out();
    }
    let mut tasks = JoinSet::new();
    let running = consumer.each(handler).run_until(std::future::pending());
    tasks.spawn(async move { running.await.map(drop).unwrap() });
    RunningConsumer(tasks)
}

/// Puts `numbers` records under each of `keys` keys, and waits until all are placed.
pub(crate) async fn put(producer: &Producer, keys: usize, numbers: std::ops::Range<usize>) {
    let mut tickets = Vec::new();
    for number in numbers {
        for key in 0..keys {
            tickets.push(producer.put(format!("key-{key}"), number.to_string()).await.unwrap());
        }
    }
    for ticket in tickets {
        let outcome = ticket.await;
        assert!(matches!(outcome, Outcome::Placed { .. }), "{outcome:?}");
    }
}
