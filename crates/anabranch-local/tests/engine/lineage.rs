//! Random reshards keep the hash space covered and the lineage correct.

use crate::stage::{EngineFixture, id};
use anabranch_local::op::{ShardDescription, StreamTarget, update_shard_count};
use anabranch_model::ids::ShardId;
use anabranch_model::sequence::SequenceNumber;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
enum Step {
    Split { which: usize, at: u128 },
    Merge { which: usize },
    Count { percent: u64 },
    Put { hash: u128 },
    Wait { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (any::<usize>(), any::<u128>()).prop_map(|(which, at)| Step::Split { which, at }),
        3 => any::<usize>().prop_map(|which| Step::Merge { which }),
        1 => (50_u64..200).prop_map(|percent| Step::Count { percent }),
        4 => any::<u128>().prop_map(|hash| Step::Put { hash }),
        1 => (0_u64..5_000).prop_map(|ms| Step::Wait { ms }),
    ]
}

fn range(shard: &ShardDescription) -> (u128, u128) {
    let range = &shard.hash_key_range;
    (range.starting_hash_key.parse().unwrap(), range.ending_hash_key.parse().unwrap())
}

fn index(shard: &ShardDescription) -> u32 {
    ShardId::from(shard.shard_id.as_str()).index().unwrap()
}

fn is_open(shard: &ShardDescription) -> bool {
    shard.sequence_number_range.ending_sequence_number.is_none()
}

/// Returns the open shards, ordered by range.
fn open(shards: &[ShardDescription]) -> Vec<&ShardDescription> {
    let mut open: Vec<_> = shards.iter().filter(|shard| is_open(shard)).collect();
    open.sort_by_key(|shard| range(shard));
    open
}

fn take(stage: &EngineFixture, step: &Step) {
    let shards = stage.shards();
    let open = open(&shards);
    match step {
        Step::Split { which, at } => {
            let shard = open[which % open.len()];
            let (start, end) = range(shard);
            // Refused where the shard is too narrow. Other tests cover that.
            let _ = stage.split(index(shard), start + at % (end - start).max(1));
        }
        Step::Merge { which } if open.len() > 1 => {
            let at = which % (open.len() - 1);
            stage.merge(index(open[at]), index(open[at + 1])).unwrap();
        }
        Step::Count { percent } => {
            let current = open.len() as u64;
            let target = (current * percent).div_ceil(100).clamp(current.div_ceil(2), 12);
            let _ = stage.engine.update_shard_count(&update_shard_count::Request {
                stream: StreamTarget::named("s"),
                target_shard_count: i64::try_from(target).ok(),
                scaling_type: Some("UNIFORM_SCALING".to_owned()),
            });
        }
        Step::Put { hash } => {
            let shard = stage.try_put("k", Some(*hash)).unwrap();
            let home = open.iter().find(|s| range(s).0 <= *hash && *hash <= range(s).1).unwrap();
            assert_eq!(id(shard), home.shard_id, "the open shard that holds the hash");
        }
        Step::Wait { ms } => stage.advance(*ms),
        Step::Merge { .. } => {}
    }
}

fn check(stage: &EngineFixture) {
    let shards = stage.shards();
    let open = open(&shards);
    assert_eq!(range(open[0]).0, 0);
    assert_eq!(range(open[open.len() - 1]).1, u128::MAX);
    for pair in open.windows(2) {
        assert_eq!(range(pair[0]).1 + 1, range(pair[1]).0, "every hash is covered once");
    }
    let by_id: BTreeMap<&str, &ShardDescription> =
        shards.iter().map(|shard| (shard.shard_id.as_str(), shard)).collect();
    let number = |text: &str| text.parse::<SequenceNumber>().unwrap();
    for shard in &shards {
        let (start, end) = range(shard);
        let parents = shard.parent_shard_id.iter().chain(&shard.adjacent_parent_shard_id);
        for parent in parents.map(|parent| by_id[parent.as_str()]) {
            let (parent_start, parent_end) = range(parent);
            assert!(parent_start <= end && start <= parent_end, "a child overlaps its parents");
            let ending = parent.sequence_number_range.ending_sequence_number.as_deref();
            let ending = number(ending.expect("a parent is closed"));
            let starting = number(&shard.sequence_number_range.starting_sequence_number);
            assert!(starting > ending, "a child's numbers are above its parent's");
        }
    }
    // A reader at the end of a closed shard gets exactly the shards that name it as a parent.
    for shard in shards.iter().filter(|shard| !is_open(shard)) {
        let end = stage.get(&stage.iterator(index(shard), "LATEST").unwrap()).unwrap();
        let told: Vec<_> = end.child_shards.iter().map(|child| &child.shard_id).collect();
        let named = shards.iter().filter(|child| {
            let mut parents = child.parent_shard_id.iter().chain(&child.adjacent_parent_shard_id);
            parents.any(|parent| *parent == shard.shard_id)
        });
        let named: Vec<_> = named.map(|child| &child.shard_id).collect();
        assert!(!told.is_empty() && told == named, "{told:?} {named:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn random_reshards_cover_every_hash_once(
        first in 1_i64..5,
        steps in prop::collection::vec(step(), 1..30),
    ) {
        let stage = EngineFixture::with_stream(first);
        for step in &steps {
            take(&stage, step);
            check(&stage);
        }
    }
}
