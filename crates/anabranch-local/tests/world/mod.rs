//! A local stream with its SDK client, and steps that the tests share.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod wire;

use anabranch_local::{EngineOptions, Local};
use aws_sdk_kinesis::primitives::Blob;
use aws_sdk_kinesis::types::{
    ChildShard, ConsumerStatus, PutRecordsRequestEntry, Record, ShardIteratorType, StreamStatus,
};
use std::ops::Range;
use std::time::Duration;

/// A running server and a client.
pub(crate) struct ServerFixture {
    pub(crate) local: Local,
    pub(crate) kinesis: aws_sdk_kinesis::Client,
}

impl ServerFixture {
    /// Starts a server without transitional states.
    pub(crate) async fn start() -> Self {
        Self::start_with(EngineOptions::instant()).await
    }

    pub(crate) async fn start_with(options: EngineOptions) -> Self {
        let local = Local::builder().with_options(options).start().await.expect("a free port");
        let kinesis = aws_sdk_kinesis::Client::new(&local.sdk_config());
        Self { local, kinesis }
    }

    /// Creates a stream and waits until it is ACTIVE.
    pub(crate) async fn stream(&self, name: &str, shards: i32) {
        let create = self.kinesis.create_stream().stream_name(name).shard_count(shards);
        create.send().await.expect("a new stream");
        self.active(name).await;
    }

    /// Waits until the stream is ACTIVE.
    pub(crate) async fn active(&self, name: &str) {
        for _ in 0..1_000 {
            let summary = self.kinesis.describe_stream_summary().stream_name(name).send().await;
            let summary = summary.expect("a summary").stream_description_summary;
            if *summary.expect("a summary").stream_status() == StreamStatus::Active {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{name} did not become active");
    }

    /// Registers a fan-out consumer and waits until it is ACTIVE. Returns its ARN.
    pub(crate) async fn consumer(&self, stream: &str, name: &str) -> String {
        let summary = self.kinesis.describe_stream_summary().stream_name(stream).send().await;
        let summary = summary.expect("a summary").stream_description_summary.expect("a summary");
        let register = self.kinesis.register_stream_consumer().consumer_name(name);
        let consumer = register.stream_arn(summary.stream_arn()).send().await.expect("a consumer");
        let arn = consumer.consumer.expect("a consumer").consumer_arn().to_owned();
        for _ in 0..1_000 {
            let consumer = self.kinesis.describe_stream_consumer().consumer_arn(&arn).send().await;
            let consumer = consumer.expect("a consumer").consumer_description.expect("a consumer");
            if *consumer.consumer_status() == ConsumerStatus::Active {
                return arn;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{name} did not become active");
    }

    /// Puts records with the numbers as data and with keys `key-0` to `key-9`.
    pub(crate) async fn put_numbered(&self, stream: &str, numbers: Range<u32>) {
        let records = numbers.map(|number| {
            PutRecordsRequestEntry::builder()
                .partition_key(format!("key-{}", number % 10))
                .data(Blob::new(number.to_string()))
                .build()
                .expect("an entry")
        });
        let put = self.kinesis.put_records().stream_name(stream);
        let put = put.set_records(Some(records.collect())).send().await.expect("a put");
        assert_eq!(put.failed_record_count(), Some(0));
    }

    /// Reads a shard from its start until it ends or is empty. Returns keys and numbers, and the
    /// children.
    pub(crate) async fn read(
        &self,
        stream: &str,
        shard: &str,
    ) -> (Vec<(String, u32)>, Vec<ChildShard>) {
        let iterator = self.kinesis.get_shard_iterator().stream_name(stream).shard_id(shard);
        let iterator = iterator.shard_iterator_type(ShardIteratorType::TrimHorizon);
        let mut iterator = iterator.send().await.expect("an iterator").shard_iterator;
        let mut records = Vec::new();
        while let Some(token) = iterator {
            let reply = self.kinesis.get_records().shard_iterator(token).send().await;
            let reply = reply.expect("records");
            let numbered = reply.records().iter().map(|r| (key(r), number(r)));
            records.extend(numbered);
            if !reply.child_shards().is_empty() {
                return (records, reply.child_shards().to_vec());
            }
            if reply.records().is_empty() && reply.millis_behind_latest() == Some(0) {
                break;
            }
            iterator = reply.next_shard_iterator;
        }
        (records, Vec::new())
    }

    /// Returns the keys of one reply from the start of a shard, and the next iterator.
    pub(crate) async fn read_keys(
        &self,
        stream: &str,
        shard: &str,
    ) -> (Vec<String>, Option<String>) {
        let iterator = self.kinesis.get_shard_iterator().stream_name(stream).shard_id(shard);
        let iterator = iterator.shard_iterator_type(ShardIteratorType::TrimHorizon);
        let iterator = iterator.send().await.expect("an iterator").shard_iterator;
        let reply = self.kinesis.get_records().set_shard_iterator(iterator).send().await;
        let reply = reply.expect("records");
        let keys = reply.records().iter().map(key);
        (keys.collect(), reply.next_shard_iterator)
    }

    /// Returns the engine's time in seconds since 1970.
    pub(crate) fn now_secs(&self) -> i64 {
        i64::try_from(self.local.engine().clock().now_ms() / 1000).expect("a time of this age")
    }
}

/// Returns the number in a record's data.
pub(crate) fn number(record: &Record) -> u32 {
    let text = std::str::from_utf8(record.data().as_ref()).expect("digits");
    text.parse().expect("a number")
}

/// Returns a record's partition key.
pub(crate) fn key(record: &Record) -> String {
    record.partition_key().expect("a key").to_owned()
}
