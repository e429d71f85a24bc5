//! Tailing readers with many concurrent writers: every record once, in one order.

use crate::stage::{ComparedRecord, EngineFixture, id, reads};
use anabranch_local::op::put_records::{EntryOutcome, Payload, PutRecordsEntry, Request};
use anabranch_local::op::{StreamTarget, get_records, get_shard_iterator};
use anabranch_local::subscription::SubscriptionStep;
use anabranch_local::{Clock, Engine, EngineOptions, StreamRef};
use anabranch_model::sequence::SequenceNumber;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

const SHARDS: u32 = 3;
const WRITERS: usize = 8;
const REQUESTS: usize = 300;
const BATCH: usize = 10;

/// The acknowledged sequence numbers and keys of one writer, by shard, in its order.
type Acknowledged = BTreeMap<u32, Vec<(SequenceNumber, String)>>;

fn write(engine: &Engine, writer: usize) -> Acknowledged {
    let mut told = Acknowledged::new();
    for request in 0..REQUESTS {
        let keys: Vec<String> = (0..BATCH).map(|i| format!("{writer}-{request}-{i}")).collect();
        let entry = |key| PutRecordsEntry {
            partition_key: Cow::Borrowed(key),
            explicit_hash_key: None,
            data: Payload::Raw(b"payload"),
        };
        let records = keys.iter().map(|key| entry(key.as_str())).collect();
        let request = Request { stream: StreamRef::named("s"), records };
        let reply = engine.put_records(&request).unwrap();
        for (key, outcome) in keys.into_iter().zip(reply.entries) {
            let EntryOutcome::Placed { shard, sequence } = outcome else { panic!("{outcome:?}") };
            told.entry(shard).or_default().push((sequence, key));
        }
    }
    told
}

fn poll(engine: &Engine, shard: u32, done: &AtomicBool) -> Vec<ComparedRecord> {
    let request = get_shard_iterator::Request {
        stream: StreamTarget::named("s"),
        shard_id: Some(id(shard)),
        shard_iterator_type: Some("LATEST".to_owned()),
        ..Default::default()
    };
    let mut iterator = engine.get_shard_iterator(&request).unwrap().shard_iterator;
    let mut seen = Vec::new();
    loop {
        // Loaded before the read, so that the read returns everything written before `done` was
        // set.
        let last = done.load(Ordering::Acquire);
        let request = get_records::Request {
            shard_iterator: Some(Cow::Owned(iterator)),
            limit: Some(50),
            stream_arn: None,
        };
        let reply = engine.get_records(&request).unwrap();
        seen.extend(reads(&reply.records));
        iterator = reply.next_iterator.unwrap();
        if last && reply.records.is_empty() {
            return seen;
        }
    }
}

fn follow(stage: &EngineFixture, arn: &str, shard: u32, done: &AtomicBool) -> Vec<ComparedRecord> {
    let mut subscription = stage.subscribe(arn, shard, "TRIM_HORIZON", None).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let mut seen = Vec::new();
    loop {
        let last = done.load(Ordering::Acquire);
        if last {
            match subscription.step() {
                SubscriptionStep::Event(event) if !event.records.is_empty() => {
                    seen.extend(reads(&event.records));
                }
                _ => return seen,
            }
        } else {
            let event = runtime.block_on(subscription.next()).unwrap().unwrap();
            seen.extend(reads(&event.records));
        }
    }
}

#[test]
fn a_tailing_reader_misses_nothing_and_sees_one_order() {
    let options = EngineOptions { heartbeat_ms: 20, ..EngineOptions::instant() };
    let stage = EngineFixture { engine: Engine::new(options, Clock::system()) };
    stage.create("s", i64::from(SHARDS));
    let arn = stage.register("app").unwrap();
    let done = AtomicBool::new(false);
    let (told, polled, followed) = std::thread::scope(|scope| {
        let (stage, engine, done, arn) = (&stage, &stage.engine, &done, &arn);
        let pollers: Vec<_> =
            (0..SHARDS).map(|shard| scope.spawn(move || poll(engine, shard, done))).collect();
        let followers: Vec<_> =
            (0..SHARDS).map(|shard| scope.spawn(move || follow(stage, arn, shard, done))).collect();
        // Readers at LATEST must have their position before the first record is put.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| scope.spawn(move || write(engine, writer))).collect();
        let told: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        done.store(true, Ordering::Release);
        let polled: Vec<_> = pollers.into_iter().map(|reader| reader.join().unwrap()).collect();
        let followed: Vec<_> = followers.into_iter().map(|reader| reader.join().unwrap()).collect();
        (told, polled, followed)
    });
    for shard in 0..SHARDS {
        let mut expected: Vec<(SequenceNumber, String)> = Vec::new();
        for writer in &told {
            let own = writer.get(&shard).cloned().unwrap_or_default();
            assert!(own.is_sorted(), "a writer's numbers ascend");
            expected.extend(own);
        }
        expected.sort();
        for (path, seen) in [("polling", &polled), ("fan-out", &followed)] {
            let seen: Vec<_> =
                seen[shard as usize].iter().map(|(n, key, _)| (*n, key.clone())).collect();
            assert_eq!(seen.len(), expected.len(), "{path} on shard {shard}");
            assert!(seen == expected, "{path} on shard {shard}: every record once, in one order");
        }
    }
}
