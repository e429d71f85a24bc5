//! Throughput: one hot key, with one Kinesis record in flight, uses a shard up to its limit.

use anabranch_model::bucket::{Admission, Allowance, Bucket};
use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::ids::ShardId;
use anabranch_model::lineage::Shard;
use anabranch_model::produce::settings::{Aggregation, ProducerSettings};
use anabranch_model::produce::{
    Action, EntryResult, Machine, OfferedRecord, PutRequest, RecordContent,
};
use anabranch_model::record::PartitionKey;
use anabranch_model::retry::Fault;
use anabranch_model::sequence::SequenceNumber;
use bytes::Bytes;
use std::collections::BTreeMap;

const LIMIT_BYTES: u64 = 1 << 20;
const LIMIT_RECORDS: u64 = 1_000;
const RUN_MS: u64 = 30_000;

/// Load of a run, and the shard it goes to.
#[derive(Debug, Clone, Copy)]
struct Case {
    round_trip_ms: u64,
    /// Load of other producers on the shard, in bytes per second.
    others: u64,
    aggregation: Aggregation,
    keys: usize,
    /// Number of waiting records, so that the producer never runs out of them.
    backlog: usize,
    record_bytes: usize,
    /// Duration of each of three pauses without puts in the run.
    pause_ms: u64,
}

const HOT: Case = Case {
    round_trip_ms: 20,
    others: 0,
    aggregation: Aggregation::ByShard,
    keys: 1,
    backlog: 20_000,
    record_bytes: 200,
    pause_ms: 0,
};

/// Load that a shard accepted in a run.
struct ShardIntake {
    bytes: u64,
    containers: u64,
    /// Number of Kinesis records that it refused.
    refused: usize,
}

fn run(case: Case) -> ShardIntake {
    let Case { round_trip_ms, others, aggregation, keys, backlog, record_bytes, pause_ms } = case;
    let data = Bytes::from(vec![7; record_bytes]);
    let settings = ProducerSettings { aggregation, ..ProducerSettings::default() };
    let mut machine: Machine<()> = Machine::new(settings, 1, 0);
    let names: Vec<PartitionKey> =
        (0..keys).map(|key| PartitionKey::from(format!("hot-{key}"))).collect();
    let mut next_key = 0;
    let limit = |per_second| Allowance { capacity: per_second, per_second };
    let mut shard = Bucket::new([limit(LIMIT_RECORDS), limit(LIMIT_BYTES - others)], 0);
    let mut arriving: BTreeMap<(u64, u64), PutRequest> = BTreeMap::new();
    let mut answers: BTreeMap<(u64, u64), Vec<EntryResult>> = BTreeMap::new();
    let mut taken = ShardIntake { bytes: 0, containers: 0, refused: 0 };
    let mut now_ms = 0;
    while now_ms < RUN_MS {
        let paused = now_ms % (RUN_MS / 3) < pause_ms;
        while !paused && machine.outstanding() < backlog {
            let key = &names[next_key % keys];
            next_key += 1;
            let hash = HashKey::of_partition_key(key.as_str());
            let content = RecordContent::Shared { key, data: &data };
            let offer = OfferedRecord { content, hash, is_explicit: false };
            machine.put_all(std::iter::once(()), |_| offer.hash, |_| offer, now_ms);
        }
        while let Some(action) = machine.poll(now_ms) {
            match action {
                Action::Send(request) => {
                    arriving.insert((now_ms + round_trip_ms / 2, request.id), request);
                }
                Action::ListShards(read) => machine.shards(read, Ok(vec![whole()]), now_ms),
                Action::Complete(_) | Action::Notice(_) => {}
            }
        }
        let events = [arriving.keys().next(), answers.keys().next()];
        let next = events.into_iter().flatten().map(|(at, _)| *at).chain(machine.wake_at());
        let goes_on = paused.then(|| now_ms - now_ms % (RUN_MS / 3) + pause_ms);
        now_ms = next.chain(goes_on).min().unwrap().max(now_ms);
        while let Some(entry) = arriving.first_entry().filter(|entry| entry.key().0 <= now_ms) {
            let request = entry.remove();
            let answer = request.entries.iter().map(|entry| {
                let size = (entry.key.len() + entry.data.len()) as u64;
                if shard.take(now_ms, [1, size]) == Admission::Passed {
                    taken.bytes += size;
                    taken.containers += 1;
                    let sequence = SequenceNumber::ZERO;
                    EntryResult::Placed { shard: ShardId::from_index(0), sequence }
                } else {
                    taken.refused += 1;
                    EntryResult::Failed { fault: Fault::Throttled, detail: "rate".into() }
                }
            });
            let answer = answer.collect();
            answers.insert((now_ms + round_trip_ms.div_ceil(2), request.id), answer);
        }
        while let Some(entry) = answers.first_entry().filter(|entry| entry.key().0 <= now_ms) {
            let ((_, id), answer) = entry.remove_entry();
            machine.reply(id, Ok(answer), now_ms);
        }
    }
    taken
}

fn whole() -> Shard {
    Shard {
        id: ShardId::from_index(0),
        parent: None,
        adjacent_parent: None,
        range: HashRange::ALL,
        starting: SequenceNumber::ZERO,
        ending: None,
    }
}

#[test]
fn one_hot_key_uses_a_shard_to_its_limit_at_any_round_trip() {
    for round_trip_ms in [5, 20, 50, 100, 200] {
        let ShardIntake { bytes, refused, .. } = run(Case { round_trip_ms, ..HOT });
        let limit = LIMIT_BYTES * RUN_MS / 1_000;
        let percent = bytes * 100 / limit;
        assert!(percent >= 95, "{round_trip_ms} ms: {percent} % of the limit, {refused} refused");
    }
}

#[test]
fn a_producer_gives_way_to_others_and_still_uses_what_they_leave() {
    let others = LIMIT_BYTES / 2;
    let ShardIntake { bytes, refused, .. } = run(Case { others, ..HOT });
    let left = (LIMIT_BYTES - others) * RUN_MS / 1_000;
    let percent = bytes * 100 / left;
    assert!(percent >= 70, "{percent} % of what is left, {refused} refused");
    assert!(refused < 150, "{refused} containers refused in {RUN_MS} ms");
}

#[test]
fn many_keys_use_a_shard_to_its_limit_and_it_refuses_none_of_them_after_a_pause() {
    for aggregation in [Aggregation::ByShard, Aggregation::ByKey, Aggregation::Off] {
        for (round_trip_ms, pause_ms) in [(5, 0), (200, 0), (5, 6_000), (200, 6_000)] {
            // After a pause, one request could carry more than two seconds' worth.
            let (keys, backlog, record_bytes) =
                if pause_ms > 0 { (800, 800, 5_000) } else { (3_000, 4_000, 200) };
            let case =
                Case { round_trip_ms, aggregation, keys, backlog, record_bytes, pause_ms, ..HOT };
            let ShardIntake { bytes, containers, refused } = run(case);
            assert_eq!(refused, 0, "{case:?}: nobody else writes to the shard");
            // Small Kinesis records reach the limit of records before that of bytes.
            let share = |taken, limit| taken * 100 / (limit * RUN_MS / 1_000);
            let percent = share(bytes, LIMIT_BYTES).max(share(containers, LIMIT_RECORDS));
            let least = if pause_ms > 0 { 35 } else { 95 };
            assert!(percent >= least, "{case:?}: {percent} % of the limit");
        }
    }
}
