//! A reader that follows the lineage while writers put records and split and merge shards.

use crate::stage::{EngineFixture, NOW, entry, id, reads};
use anabranch_local::op::get_records;
use anabranch_local::op::put_records::{EntryOutcome, Request};
use anabranch_local::{Clock, Engine, EngineOptions, StreamRef};
use std::collections::{BTreeMap, BTreeSet};

const WRITERS: usize = 4;
const KEYS: usize = 8;
const ROUNDS: usize = 400;

/// Puts the numbers from 0 under each of the writer's keys, all keys in every request. Every tenth
/// request splits or merges the shard that stored the last record. Returns the number of successful
/// reshards.
fn write(engine: &Engine, writer: usize) -> usize {
    let keys: Vec<String> = (0..KEYS).map(|i| format!("{writer}-{i}")).collect();
    let mut reshards = 0;
    for round in 0..ROUNDS {
        let data = round.to_string();
        let records = keys.iter().map(|key| entry(key, None, data.as_bytes())).collect();
        let request = Request { stream: StreamRef::named("s"), records };
        let mut last = 0;
        for outcome in engine.put_records(&request).unwrap().entries {
            let EntryOutcome::Placed { shard, .. } = outcome else { panic!("{outcome:?}") };
            last = shard;
        }
        // Refused where another writer was faster.
        let reshard = match round % 20 {
            5 => engine.split_now("s", Some(&id(last))),
            15 => engine.merge_now("s", Some(&id(last))),
            _ => continue,
        };
        reshards += usize::from(reshard.is_ok());
    }
    reshards
}

/// A reader's positions, the shards that have ended, and the numbers read by key.
struct LineageReader<'a> {
    stage: &'a EngineFixture,
    iterators: BTreeMap<String, String>,
    ended: BTreeSet<String>,
    seen: BTreeMap<String, Vec<usize>>,
}

impl LineageReader<'_> {
    /// Reads every shard once. Returns true if anything was read or a shard ended.
    fn round(&mut self) -> bool {
        let mut moved = false;
        for (shard, iterator) in std::mem::take(&mut self.iterators) {
            let reply: get_records::Reply = self.stage.get(&iterator).unwrap();
            for (_, key, data) in reads(&reply.records) {
                let number = String::from_utf8(data).unwrap().parse().unwrap();
                self.seen.entry(key).or_default().push(number);
            }
            moved |= !reply.records.is_empty() || reply.next_iterator.is_none();
            match reply.next_iterator {
                Some(next) => drop(self.iterators.insert(shard, next)),
                None => self.end(&shard, &reply.child_shards),
            }
        }
        moved
    }

    /// Marks a shard as ended, and starts to read each child whose parents have all ended.
    fn end(&mut self, shard: &str, children: &[anabranch_local::op::ChildShard]) {
        assert!(!children.is_empty(), "a shard ends with its children");
        self.ended.insert(shard.to_owned());
        for child in children {
            if child.parent_shards.iter().all(|parent| self.ended.contains(parent)) {
                let index = child.shard_id.trim_start_matches("shardId-").parse().unwrap();
                let start = self.stage.iterator(index, "TRIM_HORIZON").unwrap();
                self.iterators.insert(child.shard_id.clone(), start);
            }
        }
    }
}

#[test]
fn every_key_stays_in_order_through_splits_and_merges() {
    let options = EngineOptions { shard_limit: 10_000, ..EngineOptions::instant() };
    let stage = EngineFixture { engine: Engine::new(options, Clock::manual(NOW)) };
    stage.create("s", 2);
    let mut follower = LineageReader {
        stage: &stage,
        iterators: (0..2).map(|i| (id(i), stage.iterator(i, "TRIM_HORIZON").unwrap())).collect(),
        ended: BTreeSet::new(),
        seen: BTreeMap::new(),
    };
    let reshards: usize = std::thread::scope(|scope| {
        let engine = &stage.engine;
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| scope.spawn(move || write(engine, writer))).collect();
        while writers.iter().any(|writer| !writer.is_finished()) {
            follower.round();
        }
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    while follower.round() {}
    assert!(reshards >= WRITERS * ROUNDS / 20, "only {reshards} reshards");
    assert_eq!(follower.seen.len(), WRITERS * KEYS);
    for (key, numbers) in &follower.seen {
        assert!(numbers.iter().copied().eq(0..ROUNDS), "{key} after {reshards}: {numbers:?}");
    }
}
