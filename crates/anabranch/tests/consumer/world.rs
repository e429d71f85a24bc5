//! A local stream, a lease store, and workers that run until they are stopped or killed.

use crate::oracle::Oracle;
use anabranch::clock::{Clock, Rng};
use anabranch::consumer::{
    Consumer, Delivery, HandlerError, InterruptedCall, ProcessingMode, RunError,
};
use anabranch::event::{Event, Events};
use anabranch::lease::{LeaseStore, MemoryStore};
use anabranch::stream::LocalKinesis;
use anabranch::stream::api::StreamApi;
use anabranch_local::fault::{FaultEffect, FaultRule};
use anabranch_local::op::put_records::{Payload, PutRecordsEntry};
use anabranch_local::op::{
    Operation, StreamTarget, create_stream, list_shards, merge_shards, put_record, split_shard,
};
use anabranch_local::{Engine, EngineOptions, StreamRef};
use anabranch_model::lease::Lease;
use std::borrow::Cow;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) const STREAM: &str = "orders";

pub(crate) struct ConsumerFixture {
    pub(crate) engine: Arc<Engine>,
    pub(crate) leases: MemoryStore,
    pub(crate) oracle: Oracle,
    /// Events of all workers.
    pub(crate) events: Arc<Mutex<Vec<Event>>>,
    /// Advances the stream's clock.
    ticker: JoinSet<()>,
}

/// A running worker.
pub(crate) struct RunningWorker {
    stop: CancellationToken,
    task: JoinSet<Result<(), RunError>>,
}

impl RunningWorker {
    /// Runs a consumer.
    pub(crate) fn start<A: StreamApi, S: LeaseStore, H: ProcessingMode<S>>(
        consumer: Consumer<A, S, H>,
    ) -> Self {
        let stop = CancellationToken::new();
        let asked = stop.clone();
        let mut task = JoinSet::new();
        task.spawn(consumer.run_until(async move { asked.cancelled().await }));
        Self { stop, task }
    }

    /// Stops it gracefully.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        self.task.join_next().await.unwrap().unwrap().unwrap();
    }

    /// Stops it at the end of its grace period. Returns the interrupted calls of the handler.
    pub(crate) async fn stop_short(self) -> Vec<InterruptedCall> {
        self.ask_to_stop();
        match self.stopped().await {
            Err(RunError::Interrupted { calls }) => calls,
            other => panic!("no call was broken off: {other:?}"),
        }
    }

    /// Asks it to stop, and does not wait.
    pub(crate) fn ask_to_stop(&self) {
        self.stop.cancel();
    }

    /// Waits until it has stopped.
    pub(crate) async fn stopped(mut self) -> Result<(), RunError> {
        self.task.join_next().await.unwrap().unwrap()
    }

    /// Aborts it at once, as in a crash.
    pub(crate) async fn kill(mut self) {
        self.task.abort_all();
        while self.task.join_next().await.is_some() {}
    }
}

impl ConsumerFixture {
    /// Creates a stream with the system clock.
    pub(crate) fn new(shards: i64) -> Self {
        Self::by(anabranch_local::Clock::system(), shards)
    }

    /// Creates a stream whose clock follows virtual time.
    pub(crate) fn ticking(shards: i64) -> Self {
        let clock = anabranch_local::Clock::manual(1_700_000_000_000);
        let mut world = Self::by(clock.clone(), shards);
        world.ticker.spawn(async move {
            loop {
                pause(20).await;
                clock.advance(20);
            }
        });
        world
    }

    /// Creates a stream with this clock.
    pub(crate) fn by(clock: anabranch_local::Clock, shards: i64) -> Self {
        let options = EngineOptions { shard_limit: 2_000, ..EngineOptions::instant() };
        let engine = Arc::new(Engine::new(options, clock));
        let request = create_stream::Request {
            stream_name: Some(STREAM.to_owned()),
            shard_count: Some(shards),
            ..Default::default()
        };
        engine.create_stream(&request).unwrap();
        let leases = MemoryStore::new();
        let (oracle, events, ticker) = (Oracle::default(), Arc::default(), JoinSet::new());
        Self { engine, leases, oracle, events, ticker }
    }

    /// Creates a consumer of the stream with the paused clock, without a handler.
    pub(crate) fn consumer(&self, seed: u64) -> Consumer<LocalKinesis, MemoryStore> {
        let told = Arc::clone(&self.events);
        Consumer::new(STREAM, "mailer")
            .with_kinesis(LocalKinesis::new(Arc::clone(&self.engine)))
            .with_leases(self.leases.clone())
            .with_clock(Clock::of_runtime(), Rng::seeded(seed))
            .with_events(Events::new(move |event| told.lock().unwrap().push(event.clone())))
    }

    /// Returns a handler that reports to the oracle.
    pub(crate) fn note(
        &self,
        by: &'static str,
    ) -> impl Fn(Delivery) -> std::future::Ready<Result<(), HandlerError>> + Send + Sync + use<>
    {
        let oracle = self.oracle.clone();
        move |record: Delivery| {
            oracle.delivered(record.partition_key.as_str(), &record.data, by);
            std::future::ready(Ok(()))
        }
    }

    /// Runs a worker that reports each record to the oracle.
    pub(crate) fn worker(&self, by: &'static str, seed: u64) -> RunningWorker {
        RunningWorker::start(self.consumer(seed).each(self.note(by)))
    }

    /// Puts the next record of each of `keys` keys.
    pub(crate) fn put_round(&self, keys: usize) {
        for key in 0..keys {
            self.put(&format!("key-{key}"));
        }
    }

    /// Puts the next record of a key.
    pub(crate) fn put(&self, key: &str) {
        let data = self.oracle.put(key).to_string();
        self.put_data(key, data.as_bytes());
    }

    /// Puts a record that the oracle does not know.
    pub(crate) fn put_data(&self, key: &str, data: &[u8]) {
        self.put_into(STREAM, key, data);
    }

    /// Puts a record into a stream.
    pub(crate) fn put_into(&self, stream: &str, key: &str, data: &[u8]) {
        let request = put_record::Request {
            stream: StreamRef::named(stream),
            entry: PutRecordsEntry {
                partition_key: Cow::Borrowed(key),
                explicit_hash_key: None,
                data: Payload::Raw(data),
            },
            sequence_number_for_ordering: None,
        };
        self.engine.put_record(&request).unwrap();
    }

    /// Returns the open shards in order of their hash ranges: name, first and last hash key.
    pub(crate) fn open_shards(&self) -> Vec<(String, u128, u128)> {
        let request =
            list_shards::Request { stream: StreamTarget::named(STREAM), ..Default::default() };
        let shards = self.engine.list_shards(&request).unwrap().shards;
        let open = shards
            .into_iter()
            .filter(|shard| shard.sequence_number_range.ending_sequence_number.is_none());
        let mut open: Vec<_> = open
            .map(|shard| {
                let range = shard.hash_key_range;
                let start = range.starting_hash_key.parse().unwrap();
                (shard.shard_id, start, range.ending_hash_key.parse().unwrap())
            })
            .collect();
        open.sort_by_key(|(_, start, _)| *start);
        open
    }

    /// Splits the `at`-th open shard in the middle.
    pub(crate) fn split(&self, at: usize) {
        let (shard, start, end) = self.open_shards()[at].clone();
        let request = split_shard::Request {
            stream: StreamTarget::named(STREAM),
            shard_to_split: Some(shard),
            new_starting_hash_key: Some((start + (end - start) / 2 + 1).to_string()),
        };
        self.engine.split_shard(&request).unwrap();
    }

    /// Merges the `at`-th open shard with the next.
    pub(crate) fn merge(&self, at: usize) {
        let open = self.open_shards();
        let request = merge_shards::Request {
            stream: StreamTarget::named(STREAM),
            shard_to_merge: Some(open[at].0.clone()),
            adjacent_shard_to_merge: Some(open[at + 1].0.clone()),
        };
        self.engine.merge_shards(&request).unwrap();
    }

    /// Returns the lease rows of the stream.
    pub(crate) fn rows(&self) -> Vec<Lease> {
        self.leases.snapshot().leases(&STREAM.into()).cloned().collect()
    }

    /// Injects a fault into calls of an operation: skips `skip` calls, and affects `count`.
    pub(crate) fn strike(&self, operation: Operation, effect: FaultEffect, skip: u64, count: u64) {
        self.engine.faults().add(FaultRule {
            operation: Some(operation),
            stream: None,
            shard: None,
            probability: 1.0,
            skip,
            count: Some(count),
            effect,
        });
    }

    /// Waits until everything that was put was delivered.
    pub(crate) async fn until_all_seen(&self) {
        self.until("everything is delivered", || self.oracle.seen() == self.oracle.puts()).await;
    }

    /// Waits until `holds`, for ten virtual minutes at most.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        until(what, async || holds()).await;
    }

    /// Returns true if a matching event was emitted.
    pub(crate) fn told(&self, like: impl Fn(&Event) -> bool) -> bool {
        self.events.lock().unwrap().iter().any(like)
    }
}

/// Waits until `holds`, for ten virtual minutes at most.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    for _ in 0..12_000 {
        if holds().await {
            return;
        }
        pause(50).await;
    }
    panic!("it never came true that {what}");
}

/// Lets virtual time pass.
pub(crate) async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
