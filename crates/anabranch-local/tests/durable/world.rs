//! A fixture for durable engines, and a dump of everything visible in an engine.

use anabranch_local::op::put_records::{
    EntryOutcome, Payload, PutRecordsEntry, Request as PutRecords,
};
use anabranch_local::op::{
    describe_stream, get_records, get_shard_iterator, list_shards, list_stream_consumers,
    list_tags_for_stream,
};
use anabranch_local::persist::{Fsync, JournalOptions};
use anabranch_local::{Clock, Engine, EngineOptions, StreamRef};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::path::Path;
use tempfile::TempDir;

pub(crate) const START_MS: u64 = 1_700_000_000_000;
pub(crate) const HOUR_MS: u64 = 3_600_000;

pub(crate) fn open_with(folder: &Path, clock: &Clock, file_bytes: u64) -> Engine {
    let keeping = JournalOptions { fsync: Fsync::Never, file_bytes, ..JournalOptions::default() };
    let recovered = Engine::open(EngineOptions::default(), clock.clone(), folder, keeping).unwrap();
    assert_eq!(recovered.cut, None);
    recovered.engine
}

/// A folder and an engine in it, whose journal files are full after two kilobytes.
pub(crate) struct DurableFixture {
    pub(crate) dir: TempDir,
    pub(crate) clock: Clock,
    pub(crate) engine: Option<Engine>,
    pub(crate) runtime: tokio::runtime::Runtime,
}

impl DurableFixture {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let clock = Clock::manual(START_MS);
        let engine = Some(open_with(dir.path(), &clock, 2_048));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Self { dir, clock, engine, runtime }
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    pub(crate) fn reopen(&mut self) {
        // The folder is unlocked only once the old engine is dropped.
        self.engine = None;
        self.engine = Some(open_with(self.dir.path(), &self.clock, 2_048));
    }

    /// Waits for durability, as the server does after each operation.
    pub(crate) fn settle(&self) {
        self.runtime.block_on(self.engine().durable()).unwrap();
    }

    pub(crate) fn put(
        &self,
        stream: &str,
        keys: &[&str],
        size: usize,
    ) -> Option<Vec<EntryOutcome>> {
        let data = vec![b'd'; size];
        let records = keys
            .iter()
            .map(|key| PutRecordsEntry {
                partition_key: Cow::Borrowed(*key),
                explicit_hash_key: None,
                data: Payload::Raw(&data),
            })
            .collect();
        let request = PutRecords { stream: StreamRef::named(stream), records };
        self.engine().put_records(&request).ok().map(|reply| reply.entries)
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        let files = std::fs::read_dir(self.dir.path()).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    }
}

pub(crate) fn request<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Returns everything that is visible in an engine.
pub(crate) fn portrait(engine: &Engine) -> Value {
    let names = engine.list_streams(&request(json!({}))).unwrap();
    let names = serde_json::to_value(names).unwrap()["StreamNames"].clone();
    let mut streams = Vec::new();
    for name in names.as_array().unwrap() {
        let target = json!({"StreamName": name});
        let described = engine
            .describe_stream(&request::<describe_stream::Request>(target.clone()))
            .map(|reply| serde_json::to_value(reply).unwrap())
            .unwrap();
        let shards = engine.list_shards(&request::<list_shards::Request>(target.clone()));
        let shards = shards.map(|reply| serde_json::to_value(reply).unwrap()).unwrap_or_default();
        let tags =
            engine.list_tags_for_stream(&request::<list_tags_for_stream::Request>(target.clone()));
        let tags = tags.map(|reply| serde_json::to_value(reply).unwrap()).unwrap_or_default();
        let arn = described["StreamDescription"]["StreamARN"].clone();
        let consumers = engine.list_stream_consumers(&request::<list_stream_consumers::Request>(
            json!({"StreamARN": arn}),
        ));
        let consumers =
            consumers.map(|reply| serde_json::to_value(reply).unwrap()).unwrap_or_default();
        let contents: Vec<_> = shards["Shards"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|shard| contents(engine, name, &shard["ShardId"]))
            .collect();
        streams.push(json!([described, shards, tags, consumers, contents]));
    }
    Value::Array(streams)
}

/// Returns all records of a shard, and the state of the last reply: next iterator, children, delay.
pub(crate) fn contents(engine: &Engine, stream: &Value, shard: &Value) -> Value {
    let at_start =
        json!({"StreamName": stream, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"});
    match engine.get_shard_iterator(&request::<get_shard_iterator::Request>(at_start)) {
        Err(problem) => json!(problem.to_string()),
        Ok(reply) => read_on(engine, reply.shard_iterator),
    }
}

pub(crate) fn read_on(engine: &Engine, mut iterator: String) -> Value {
    let mut records = Vec::new();
    loop {
        let request = get_records::Request {
            shard_iterator: Some(Cow::Borrowed(&iterator)),
            ..get_records::Request::default()
        };
        let reply = match engine.get_records(&request) {
            Ok(reply) => reply,
            Err(problem) => return json!([[], problem.to_string()]),
        };
        records.extend(reply.records.iter().map(|record| {
            json!([
                record.sequence.to_string(),
                record.arrival_ms,
                record.partition_key,
                String::from_utf8_lossy(record.data)
            ])
        }));
        match reply.next_iterator {
            Some(next) if !reply.records.is_empty() => iterator = next,
            next => {
                let children = serde_json::to_value(&reply.child_shards).unwrap();
                return json!([records, next.is_some(), children, reply.millis_behind_latest]);
            }
        }
    }
}

pub(crate) fn highest_number(portrait: &Value) -> String {
    let mut highest = String::new();
    for stream in portrait.as_array().unwrap() {
        for shard in stream[4].as_array().unwrap() {
            for record in shard[0].as_array().unwrap() {
                highest = highest.max(record[0].as_str().unwrap().to_owned());
            }
        }
    }
    highest
}

pub(crate) fn shard_name(index: usize) -> String {
    format!("shardId-{index:012}")
}
