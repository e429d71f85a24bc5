//! An engine that is closed, or killed, and opened again is the engine that it was.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

use anabranch_local::op::put_records::{Entry, EntryOutcome, Payload, Request as PutRecords};
use anabranch_local::op::{
    add_tags_to_stream, create_stream, decrease_stream_retention_period, delete_stream,
    deregister_stream_consumer, describe_stream, disable_enhanced_monitoring,
    enable_enhanced_monitoring, get_records, get_shard_iterator, increase_stream_retention_period,
    list_shards, list_stream_consumers, list_tags_for_stream, merge_shards,
    register_stream_consumer, remove_tags_from_stream, split_shard, start_stream_encryption,
    stop_stream_encryption, update_max_record_size, update_shard_count,
};
use anabranch_local::persist::{DEFAULT_FILE_BYTES, Fsync, JournalOptions};
use anabranch_local::{Clock, Engine, Options, StreamRef};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::path::Path;
use tempfile::TempDir;

const START_MS: u64 = 1_700_000_000_000;
const HOUR_MS: u64 = 3_600_000;

fn open_with(folder: &Path, clock: &Clock, file_bytes: u64) -> Engine {
    let keeping = JournalOptions { fsync: Fsync::Never, file_bytes };
    let recovered = Engine::open(Options::default(), clock.clone(), folder, keeping).unwrap();
    assert_eq!(recovered.cut, None);
    recovered.engine
}

/// A folder and an engine in it, whose files are full after two kilobytes.
struct World {
    dir: TempDir,
    clock: Clock,
    engine: Option<Engine>,
    runtime: tokio::runtime::Runtime,
}

impl World {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let clock = Clock::manual(START_MS);
        let engine = Some(open_with(dir.path(), &clock, 2_048));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Self { dir, clock, engine, runtime }
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        // The folder is free only when the old engine is gone.
        self.engine = None;
        self.engine = Some(open_with(self.dir.path(), &self.clock, 2_048));
    }

    /// What the server does after each operation.
    fn settle(&self) {
        self.runtime.block_on(self.engine().durable()).unwrap();
    }

    fn put(&self, stream: &str, keys: &[&str], size: usize) -> Option<Vec<EntryOutcome>> {
        let data = vec![b'd'; size];
        let records = keys
            .iter()
            .map(|key| Entry {
                partition_key: Cow::Borrowed(*key),
                explicit_hash_key: None,
                data: Payload::Raw(&data),
            })
            .collect();
        let request = PutRecords { stream: StreamRef::named(stream), records };
        self.engine().put_records(&request).ok().map(|reply| reply.entries)
    }

    fn disk_bytes(&self) -> u64 {
        let files = std::fs::read_dir(self.dir.path()).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    }
}

fn request<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Everything that can be seen of an engine.
fn portrait(engine: &Engine) -> Value {
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

/// All records of a shard, and what is at its end.
fn contents(engine: &Engine, stream: &Value, shard: &Value) -> Value {
    let at_start =
        json!({"StreamName": stream, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"});
    match engine.get_shard_iterator(&request::<get_shard_iterator::Request>(at_start)) {
        Err(problem) => json!(problem.to_string()),
        Ok(reply) => read_on(engine, reply.shard_iterator),
    }
}

fn read_on(engine: &Engine, mut iterator: String) -> Value {
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

fn highest_number(portrait: &Value) -> String {
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

fn shard_name(index: usize) -> String {
    format!("shardId-{index:012}")
}

#[test]
fn streams_shards_consumers_tags_and_records_come_back() {
    let mut world = World::new();
    let engine = world.engine();
    engine
        .create_stream(&request::<create_stream::Request>(
            json!({"StreamName": "a", "ShardCount": 2, "Tags": {"team": "river"}}),
        ))
        .unwrap();
    engine.create_stream(&request(json!({"StreamName": "gone", "ShardCount": 1}))).unwrap();
    world.clock.advance(1_000);
    let keys = ["k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8"];
    world.put("a", &keys, 50).unwrap();
    let half = (u128::MAX / 4).to_string();
    engine
        .split_shard(&request::<split_shard::Request>(json!({
            "StreamName": "a", "ShardToSplit": shard_name(0), "NewStartingHashKey": half,
        })))
        .unwrap();
    world.clock.advance(1_000);
    world.put("a", &keys, 60).unwrap();
    engine
        .merge_shards(&request::<merge_shards::Request>(json!({
            "StreamName": "a", "ShardToMerge": shard_name(3), "AdjacentShardToMerge": shard_name(1),
        })))
        .unwrap();
    world.clock.advance(1_000);
    world.put("a", &keys, 70).unwrap();
    let engine = world.engine();
    let described = engine.describe_stream(&request(json!({"StreamName": "a"}))).unwrap();
    let arn = described.stream_description.stream_arn;
    engine
        .register_stream_consumer(&request::<register_stream_consumer::Request>(
            json!({"StreamARN": arn, "ConsumerName": "c"}),
        ))
        .unwrap();
    engine
        .increase_stream_retention_period(&request::<increase_stream_retention_period::Request>(
            json!({"StreamName": "a", "RetentionPeriodHours": 48}),
        ))
        .unwrap();
    engine
        .delete_stream(&request::<delete_stream::Request>(json!({"StreamName": "gone"})))
        .unwrap();
    let half_read = engine
        .get_shard_iterator(&request(json!({
            "StreamName": "a", "ShardId": shard_name(4), "ShardIteratorType": "LATEST",
        })))
        .unwrap()
        .shard_iterator;

    let before = portrait(engine);
    assert_eq!(before.as_array().unwrap().len(), 2, "the deleted stream is still DELETING");
    assert_eq!(before[0][4].as_array().unwrap().len(), 5);
    world.reopen();
    assert_eq!(portrait(world.engine()), before);
    let placed = world.put("a", &keys, 80).unwrap();
    let highest = highest_number(&before);
    for outcome in placed {
        let EntryOutcome::Placed { sequence, shard } = outcome else { panic!("{outcome:?}") };
        assert!(shard != 4 || sequence.to_string() > highest, "{sequence} is not new");
    }
    let new = read_on(world.engine(), half_read);
    assert!(!new[0].as_array().unwrap().is_empty(), "an old iterator reads what came after it");
    assert!(new[0].as_array().unwrap().iter().all(|r| r[3].as_str().unwrap().len() == 80));
    let before = portrait(world.engine());
    world.reopen();
    assert_eq!(portrait(world.engine()), before);
}

#[test]
fn a_shard_that_closes_after_an_opening_still_ends() {
    let mut world = World::new();
    world.engine().create_stream(&request(json!({"StreamName": "a", "ShardCount": 1}))).unwrap();
    world.clock.advance(1_000);
    world.put("a", &["k"], 10).unwrap();
    world.reopen();
    let half = (u128::MAX / 2).to_string();
    world
        .engine()
        .split_shard(&request(json!({
            "StreamName": "a", "ShardToSplit": shard_name(0), "NewStartingHashKey": half,
        })))
        .unwrap();
    let contents = contents(world.engine(), &json!("a"), &json!(shard_name(0)));
    assert_eq!(contents[1], json!(false), "no next iterator: {contents}");
    assert_eq!(contents[2].as_array().unwrap().len(), 2);
}

#[test]
fn numbers_that_were_lost_with_the_power_are_not_given_again() {
    let mut world = World::new();
    world.engine().create_stream(&request(json!({"StreamName": "a", "ShardCount": 1}))).unwrap();
    world.clock.advance(1_000);
    world.put("a", &["kept"], 10).unwrap();
    let log = world.dir.path().join("journal-0000000001.log");
    let length = std::fs::metadata(&log).unwrap().len();
    world.put("a", &["lost"; 200], 1).unwrap();
    let seen = highest_number(&portrait(world.engine()));
    world.engine = None;
    std::fs::File::options().write(true).open(&log).unwrap().set_len(length).unwrap();
    world.reopen();
    world.put("a", &["new"], 10).unwrap();
    assert!(highest_number(&portrait(world.engine())) > seen);
}

#[test]
fn disk_use_follows_the_records_that_are_within_retention() {
    let mut world = World::new();
    world.engine().create_stream(&request(json!({"StreamName": "long", "ShardCount": 1}))).unwrap();
    world
        .engine()
        .create_stream(&request(json!({"StreamName": "short", "ShardCount": 1})))
        .unwrap();
    world.clock.advance(1_000);
    world
        .engine()
        .increase_stream_retention_period(&request(
            json!({"StreamName": "long", "RetentionPeriodHours": 8_760}),
        ))
        .unwrap();
    for day in 0..100 {
        world.put("long", &["one a day"], 100).unwrap();
        for _ in 0..20 {
            world.put("short", &["many"], 1_000).unwrap();
            world.settle();
        }
        world.clock.advance(25 * HOUR_MS);
        world.settle();
        if day % 10 == 0 {
            world.reopen();
        }
    }
    // 2 MB were written; 100 records of 100 bytes are within retention.
    let bytes = world.disk_bytes();
    assert!(bytes < 60_000, "{bytes} bytes on disk");
    let before = portrait(world.engine());
    assert_eq!(before[0][4][0][0].as_array().unwrap().len(), 100);
    world.reopen();
    assert_eq!(portrait(world.engine()), before);
}

#[test]
fn three_megabytes_of_records_cost_less_than_six_of_journal() {
    let (dir, clock) = (TempDir::new().unwrap(), Clock::manual(START_MS));
    let engine = open_with(dir.path(), &clock, DEFAULT_FILE_BYTES);
    engine.create_stream(&request(json!({"StreamName": "a", "ShardCount": 8}))).unwrap();
    clock.advance(1_000);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let world = World { dir, clock, engine: Some(engine), runtime };
    let keys: Vec<_> = (0..500).map(|key| format!("key-{key:04}")).collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    for _ in 0..60 {
        world.put("a", &keys, 100).unwrap();
        world.settle();
    }
    let in_batches = world.disk_bytes();
    for key in keys.iter().cycle().take(3_000) {
        world.put("a", &[key], 100).unwrap();
    }
    let one_by_one = world.disk_bytes() - in_batches;
    println!("30,000 x 100 bytes: {in_batches} in batches, {} one by one", one_by_one * 10);
    assert!(in_batches < 6_000_000 && one_by_one * 10 < 6_000_000);
    assert!(in_batches > 3_000_000, "not all of it is there");
}

#[test]
fn a_longer_retention_does_not_bring_back_what_was_past_the_old_one() {
    let mut world = World::new();
    world.engine().create_stream(&request(json!({"StreamName": "a", "ShardCount": 1}))).unwrap();
    world.clock.advance(1_000);
    world.put("a", &["old"], 10).unwrap();
    world.clock.advance(25 * HOUR_MS);
    world.put("a", &["new"], 10).unwrap();
    let longer = json!({"StreamName": "a", "RetentionPeriodHours": 100});
    world.engine().increase_stream_retention_period(&request(longer)).unwrap();
    for _ in 0..3 {
        let contents = contents(world.engine(), &json!("a"), &json!(shard_name(0)));
        let keys: Vec<_> = contents[0].as_array().unwrap().iter().map(|r| r[2].clone()).collect();
        assert_eq!(keys, ["new"]);
        world.reopen();
    }
}

#[test]
fn a_shard_that_a_longer_retention_came_too_late_for_stays_gone() {
    let mut world = World::new();
    world.engine().create_stream(&request(json!({"StreamName": "a", "ShardCount": 1}))).unwrap();
    world.clock.advance(1_000);
    let half = (u128::MAX / 2).to_string();
    let split =
        json!({"StreamName": "a", "ShardToSplit": shard_name(0), "NewStartingHashKey": half});
    world.engine().split_shard(&request(split)).unwrap();
    world.clock.advance(25 * HOUR_MS);
    let longer = json!({"StreamName": "a", "RetentionPeriodHours": 100});
    world.engine().increase_stream_retention_period(&request(longer)).unwrap();
    // Enough for a new file, whose snapshot is then all that is left of the above.
    for _ in 0..20 {
        let tags = json!({"StreamName": "a", "Tags": {"tag": "v".repeat(200)}});
        world.engine().add_tags_to_stream(&request(tags)).unwrap();
        world.settle();
    }
    assert!(!world.dir.path().join("journal-0000000001.log").exists());
    let before = portrait(world.engine());
    assert_eq!(before[0][1]["Shards"].as_array().unwrap().len(), 2);
    world.reopen();
    assert_eq!(portrait(world.engine()), before);
}

/// One step of a random history. Steps that the engine refuses change nothing.
#[derive(Debug, Clone)]
enum Step {
    Create(usize, u8),
    Delete(usize),
    Put(usize, u8, u16),
    Split(usize, u8, u128),
    Merge(usize, u8, u8),
    Count(usize, u8),
    Retain(usize, bool, u16),
    Tag(usize, u8, bool),
    Consumer(usize, u8, bool),
    Encrypt(usize, bool),
    Monitor(usize, bool),
    RecordMax(usize, u16),
    Advance(u64),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let s = 0usize..3;
    prop_oneof![
        3 => (s.clone(), 1u8..4).prop_map(|(s, n)| Step::Create(s, n)),
        1 => s.clone().prop_map(Step::Delete),
        8 => (s.clone(), 1u8..30, 0u16..400).prop_map(|(s, n, b)| Step::Put(s, n, b)),
        3 => (s.clone(), 0u8..10, any::<u128>()).prop_map(|(s, i, h)| Step::Split(s, i, h)),
        3 => (s.clone(), 0u8..10, 0u8..10).prop_map(|(s, a, b)| Step::Merge(s, a, b)),
        1 => (s.clone(), 1u8..7).prop_map(|(s, n)| Step::Count(s, n)),
        1 => (s.clone(), any::<bool>(), 24u16..60).prop_map(|(s, up, h)| Step::Retain(s, up, h)),
        1 => (s.clone(), 0u8..4, any::<bool>()).prop_map(|(s, k, on)| Step::Tag(s, k, on)),
        1 => (s.clone(), 0u8..3, any::<bool>()).prop_map(|(s, k, on)| Step::Consumer(s, k, on)),
        1 => (s.clone(), any::<bool>()).prop_map(|(s, on)| Step::Encrypt(s, on)),
        1 => (s.clone(), any::<bool>()).prop_map(|(s, on)| Step::Monitor(s, on)),
        1 => (s, 1_024u16..10_240).prop_map(|(s, kib)| Step::RecordMax(s, kib)),
        6 => prop_oneof![0u64..100, 0u64..HOUR_MS, 20 * HOUR_MS..30 * HOUR_MS].prop_map(Step::Advance),
        1 => Just(Step::Reopen),
    ]
}

const NAMES: [&str; 3] = ["one", "two", "three"];
const KEYS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Does a step. Whether the engine refused it is of no interest here.
fn run(world: &mut World, step: &Step) {
    let engine = world.engine();
    let named = |s: usize, more: Value| {
        let mut value = json!({"StreamName": NAMES[s]});
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        value
    };
    let arn = |s: usize| format!("arn:aws:kinesis:us-east-1:000000000000:stream/{}", NAMES[s]);
    match *step {
        Step::Create(s, n) => {
            let _ = engine.create_stream(&request(named(s, json!({"ShardCount": n}))));
        }
        Step::Delete(s) => {
            let all = json!({"EnforceConsumerDeletion": true});
            let _ = engine.delete_stream(&request(named(s, all)));
        }
        Step::Put(s, n, bytes) => {
            let keys: Vec<_> = (0..n).map(|i| KEYS[usize::from(i) % KEYS.len()]).collect();
            let _ = world.put(NAMES[s], &keys, usize::from(bytes));
        }
        Step::Split(s, shard, at) => {
            let shard = shard_name(shard.into());
            let split = json!({"ShardToSplit": shard, "NewStartingHashKey": at.to_string()});
            let _ = engine.split_shard(&request(named(s, split)));
        }
        Step::Merge(s, a, b) => {
            let (a, b) = (shard_name(a.into()), shard_name(b.into()));
            let merge = json!({"ShardToMerge": a, "AdjacentShardToMerge": b});
            let _ = engine.merge_shards(&request(named(s, merge)));
        }
        Step::Count(s, n) => {
            let count = json!({"TargetShardCount": n, "ScalingType": "UNIFORM_SCALING"});
            let count: update_shard_count::Request = request(named(s, count));
            let _ = engine.update_shard_count(&count);
        }
        Step::Retain(s, up, hours) => {
            let retain = named(s, json!({"RetentionPeriodHours": hours}));
            if up {
                let _ = engine.increase_stream_retention_period(&request(retain));
            } else {
                let retain: decrease_stream_retention_period::Request = request(retain);
                let _ = engine.decrease_stream_retention_period(&retain);
            }
        }
        Step::Tag(s, key, true) => {
            let tag: add_tags_to_stream::Request =
                request(named(s, json!({"Tags": {format!("t{key}"): "v"}})));
            let _ = engine.add_tags_to_stream(&tag);
        }
        Step::Tag(s, key, false) => {
            let untag: remove_tags_from_stream::Request =
                request(named(s, json!({"TagKeys": [format!("t{key}")]})));
            let _ = engine.remove_tags_from_stream(&untag);
        }
        Step::Consumer(s, key, true) => {
            let register = json!({"StreamARN": arn(s), "ConsumerName": format!("c{key}")});
            let _ = engine.register_stream_consumer(&request(register));
        }
        Step::Consumer(s, key, false) => {
            let gone = json!({"StreamARN": arn(s), "ConsumerName": format!("c{key}")});
            let gone: deregister_stream_consumer::Request = request(gone);
            let _ = engine.deregister_stream_consumer(&gone);
        }
        Step::Encrypt(s, on) => {
            let key = named(s, json!({"EncryptionType": "KMS", "KeyId": "alias/aws/kinesis"}));
            if on {
                let key: start_stream_encryption::Request = request(key);
                let _ = engine.start_stream_encryption(&key);
            } else {
                let key: stop_stream_encryption::Request = request(key);
                let _ = engine.stop_stream_encryption(&key);
            }
        }
        Step::Monitor(s, on) => {
            let metrics = named(s, json!({"ShardLevelMetrics": ["IncomingBytes"]}));
            if on {
                let metrics: enable_enhanced_monitoring::Request = request(metrics);
                let _ = engine.enable_enhanced_monitoring(&metrics);
            } else {
                let metrics: disable_enhanced_monitoring::Request = request(metrics);
                let _ = engine.disable_enhanced_monitoring(&metrics);
            }
        }
        Step::RecordMax(s, kib) => {
            let most = json!({"StreamARN": arn(s), "MaxRecordSizeInKiB": kib});
            let most: update_max_record_size::Request = request(most);
            let _ = engine.update_max_record_size(&most);
        }
        Step::Advance(ms) => drop(world.clock.advance(ms)),
        Step::Reopen => world.reopen(),
    }
    world.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn any_history_comes_back_as_it_was(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        for step in &steps {
            run(&mut world, step);
        }
        let before = portrait(world.engine());
        world.reopen();
        prop_assert_eq!(portrait(world.engine()), before.clone());
        world.reopen();
        prop_assert_eq!(portrait(world.engine()), before);
    }
}
