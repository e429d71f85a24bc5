//! Throughput: one hot key and one container on its way use a shard to its limit.

use crate::bucket::{Admission, Allowance, Bucket};
use crate::hash::{HashKey, HashRange};
use crate::ids::ShardId;
use crate::lineage::Shard;
use crate::produce::settings::Settings;
use crate::produce::{Action, EntryReply, Machine, Put, Request};
use crate::record::Key;
use crate::retry::Fault;
use crate::sequence::SequenceNumber;
use bytes::Bytes;
use std::collections::BTreeMap;

const LIMIT_BYTES: u64 = 1 << 20;
const RUN_MS: u64 = 30_000;
/// Records that are kept waiting, so that the producer is never short of them.
const BACKLOG: usize = 20_000;

/// Bytes that a shard took in a run with this round trip, beside its limit, and how many
/// containers it refused. `others` is what other producers take of it, in bytes a second.
fn run(round_trip_ms: u64, others: u64) -> (u64, usize) {
    let mut machine: Machine<()> = Machine::new(Settings::default(), 1, 0);
    let limit = |per_second| Allowance { capacity: per_second, per_second };
    let mut shard = Bucket::new([limit(1_000), limit(LIMIT_BYTES - others)], 0);
    let mut arriving: BTreeMap<(u64, u64), Request> = BTreeMap::new();
    let mut answers: BTreeMap<(u64, u64), Vec<EntryReply>> = BTreeMap::new();
    let (mut bytes, mut refused) = (0, 0);
    let mut now_ms = 0;
    while now_ms < RUN_MS {
        while machine.outstanding() < BACKLOG {
            let key = Key::from("hot");
            let hash = HashKey::of_partition_key("hot");
            let data = Bytes::from_static(&[7; 200]);
            machine.put(Put { key, hash, is_explicit: false, data, ticket: () }, now_ms);
        }
        while let Some(action) = machine.poll(now_ms) {
            match action {
                Action::Send(request) => {
                    arriving.insert((now_ms + round_trip_ms / 2, request.id), request);
                }
                Action::Read(read) => machine.shards(read, Ok(vec![whole()]), now_ms),
                Action::Settle(_) | Action::Notice(_) => {}
            }
        }
        let events = [arriving.keys().next(), answers.keys().next()];
        let next = events.into_iter().flatten().map(|(at, _)| *at).chain(machine.wake_at()).min();
        now_ms = next.unwrap().max(now_ms);
        while let Some(entry) = arriving.first_entry().filter(|entry| entry.key().0 <= now_ms) {
            let request = entry.remove();
            let answer = request.entries.iter().map(|entry| {
                let size = (entry.key.len() + entry.data.len()) as u64;
                if shard.take(now_ms, [1, size]) == Admission::Passed {
                    bytes += size;
                    let sequence = SequenceNumber::ZERO;
                    EntryReply::Placed { shard: ShardId::from_index(0), sequence }
                } else {
                    refused += 1;
                    EntryReply::Failed { fault: Fault::Throttled, detail: "rate".into() }
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
    (bytes, refused)
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
        let (bytes, refused) = run(round_trip_ms, 0);
        let limit = LIMIT_BYTES * RUN_MS / 1_000;
        let percent = bytes * 100 / limit;
        assert!(percent >= 95, "{round_trip_ms} ms: {percent} % of the limit, {refused} refused");
    }
}

#[test]
fn a_producer_gives_way_to_others_and_still_uses_what_they_leave() {
    let others = LIMIT_BYTES / 2;
    let (bytes, refused) = run(20, others);
    let left = (LIMIT_BYTES - others) * RUN_MS / 1_000;
    let percent = bytes * 100 / left;
    assert!(percent >= 70, "{percent} % of what is left, {refused} refused");
    assert!(refused < 150, "{refused} containers refused in {RUN_MS} ms");
}
