//! Splits, merges and changes of the shard count, seen through the API.

use crate::stage::{EngineFixture, entry, id, reads, refused};
use anabranch_local::op::{ShardDescription, StreamTarget, update_shard_count};
use anabranch_local::{ApiError, ErrorKind};
use anabranch_model::sequence::SequenceNumber;

const HALF: u128 = 1 << 127;

fn number(text: &str) -> SequenceNumber {
    text.parse().unwrap()
}

fn parents(shard: &ShardDescription) -> Vec<String> {
    let both = shard.parent_shard_id.iter().chain(&shard.adjacent_parent_shard_id);
    both.cloned().collect()
}

fn count(stage: &EngineFixture, target: i64) -> Result<update_shard_count::Reply, ApiError> {
    stage.engine.update_shard_count(&update_shard_count::Request {
        stream: StreamTarget::named("s"),
        target_shard_count: Some(target),
        scaling_type: Some("UNIFORM_SCALING".to_owned()),
    })
}

#[test]
fn a_split_closes_the_parent_above_its_last_record() {
    let stage = EngineFixture::with_stream(1);
    let last = stage.put("a");
    stage.split(0, HALF).unwrap();
    let shards = stage.shards();
    let ending = shards[0].sequence_number_range.ending_sequence_number.as_deref().unwrap();
    assert!(number(ending) > last);
    for (child, start, end) in [(&shards[1], 0, HALF - 1), (&shards[2], HALF, u128::MAX)] {
        assert_eq!(parents(child), [id(0)]);
        assert_eq!(child.hash_key_range.starting_hash_key, start.to_string());
        assert_eq!(child.hash_key_range.ending_hash_key, end.to_string());
        let range = &child.sequence_number_range;
        assert!(number(&range.starting_sequence_number) > number(ending));
        assert_eq!(range.ending_sequence_number, None);
    }
    assert_eq!(stage.try_put("k", Some(0)).unwrap(), 1);
    assert_eq!(stage.try_put("k", Some(HALF)).unwrap(), 2);
}

#[test]
fn the_end_of_a_closed_shard_comes_with_its_last_records_and_its_children() {
    let stage = EngineFixture::with_stream(2);
    stage.try_put_entry(entry("a", Some("0"), b"")).unwrap();
    stage.try_put_entry(entry("b", Some("0"), b"")).unwrap();
    let open = stage.iterator(0, "LATEST").unwrap();
    stage.merge(0, 1).unwrap();

    let first = stage.get_some(&stage.iterator(0, "TRIM_HORIZON").unwrap(), Some(1)).unwrap();
    assert!(first.child_shards.is_empty());
    let last = stage.get(&first.next_iterator.unwrap()).unwrap();
    assert_eq!(reads(&last.records).len(), 1);
    assert_eq!(last.next_iterator, None, "no extra call to find the end");
    for iterator in [open, stage.iterator(1, "TRIM_HORIZON").unwrap()] {
        let end = stage.get(&iterator).unwrap();
        assert_eq!((end.next_iterator, end.millis_behind_latest), (None, 0));
        let [child] = &end.child_shards[..] else { panic!("{:?}", end.child_shards) };
        assert_eq!((child.shard_id.as_str(), &child.parent_shards), (&*id(2), &vec![id(0), id(1)]));
        assert_eq!(child.hash_key_range.ending_hash_key, u128::MAX.to_string());
    }
    let ending = stage.shards()[0].sequence_number_range.ending_sequence_number.clone();
    let after = stage.iterator_of(0, "AFTER_SEQUENCE_NUMBER", |request| {
        request.starting_sequence_number = ending;
    });
    assert_eq!(stage.get(&after.unwrap()).unwrap().next_iterator, None);
}

#[test]
fn a_closed_shard_cannot_be_split_or_merged_again() {
    let stage = EngineFixture::with_stream(2);
    stage.split(0, HALF / 2).unwrap();
    let words = "has already been merged or split, and thus is not eligible";
    refused(stage.split(0, HALF / 4), ErrorKind::InvalidArgument, words);
    refused(stage.merge(0, 1), ErrorKind::InvalidArgument, words);
    stage.merge(2, 3).unwrap();
    refused(stage.merge(2, 3), ErrorKind::InvalidArgument, words);
    refused(stage.split(3, HALF / 2 + 9), ErrorKind::InvalidArgument, words);
}

#[test]
fn wrong_reshards_are_refused_in_the_services_words() {
    let stage = EngineFixture::with_stream(3);
    let invalid = ErrorKind::InvalidArgument;
    for at in [0, 1, u128::MAX / 3, HALF, u128::MAX] {
        refused(stage.split(0, at), invalid, "is not both greater than one plus the shard's");
    }
    refused(stage.split(7, HALF), ErrorKind::ResourceNotFound, "Could not find shard");
    refused(stage.merge(0, 2), invalid, "are not an adjacent pair");
    refused(stage.merge(1, 0), invalid, "are not an adjacent pair");
    refused(stage.merge(0, 0), invalid, "are not an adjacent pair");
    refused(count(&stage, 7), invalid, "cannot scale up over double");
    refused(count(&stage, 1), invalid, "cannot scale down below half");
    refused(count(&stage, 0), ErrorKind::Validation, "'targetShardCount'");
}

#[test]
fn another_shard_count_keeps_the_lineage() {
    for (from, to, all) in [(2, 4, 6), (4, 2, 6), (2, 3, 7), (3, 2, 7), (4, 8, 12), (1, 2, 3)] {
        let stage = EngineFixture::with_stream(from);
        let reply = count(&stage, to).unwrap();
        assert_eq!(reply.current_shard_count, usize::try_from(from).unwrap());
        let shards = stage.shards();
        let shown = format!("{from} to {to}: {shards:#?}");
        assert_eq!(shards.len(), all, "{shown}");
        let open = |s: &&ShardDescription| s.sequence_number_range.ending_sequence_number.is_none();
        let open: Vec<_> = shards.iter().filter(open).collect();
        assert_eq!(open.len(), usize::try_from(to).unwrap(), "{shown}");
        let first = usize::try_from(from).unwrap();
        assert!(shards[first..].iter().all(|shard| !parents(shard).is_empty()), "{shown}");
    }
}

#[test]
fn numbers_ascend_over_three_reshards_and_have_56_digits() {
    let stage = EngineFixture::with_stream(1);
    let mut numbers = vec![stage.put("k")];
    for at in [HALF, HALF / 2, HALF / 4] {
        let lowest =
            stage.shards().into_iter().rfind(|s| s.hash_key_range.starting_hash_key == "0");
        let index = lowest.unwrap().shard_id.strip_prefix("shardId-").unwrap().parse().unwrap();
        numbers.push(stage.try_put_entry(entry("k", Some("0"), b"")).unwrap().sequence);
        stage.split(index, at).unwrap();
        numbers.push(stage.try_put_entry(entry("k", Some("0"), b"")).unwrap().sequence);
    }
    assert!(numbers.is_sorted());
    assert!(numbers.iter().all(|number| number.to_string().len() == 56));
}
