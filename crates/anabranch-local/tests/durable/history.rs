//! Random histories of operations, and the engine after each of them.

use crate::world::{DurableFixture, HOUR_MS, portrait, request, shard_name};
use anabranch_local::op::{
    add_tags_to_stream, decrease_stream_retention_period, deregister_stream_consumer,
    disable_enhanced_monitoring, enable_enhanced_monitoring, remove_tags_from_stream,
    start_stream_encryption, stop_stream_encryption, update_max_record_size, update_shard_count,
};
use proptest::prelude::*;
use serde_json::{Value, json};

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

/// Runs a step. Ignores a refusal by the engine.
fn run(world: &mut DurableFixture, step: &Step) {
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
        let mut world = DurableFixture::new();
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
