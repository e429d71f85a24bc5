//! Putting records: routing, order, sizes and refusals.

use crate::stage::{EngineFixture, entry, refused};
use anabranch_local::op::put_records::{EntryOutcome, Payload, PutRecordsEntry, Request};
use anabranch_local::op::{StreamTarget, put_record, update_max_record_size};
use anabranch_local::{ApiError, ErrorKind, StreamRef};
use anabranch_model::hash::HashKey;
use anabranch_model::sequence::SequenceNumber;
use std::borrow::Cow;

const MIB: usize = 1024 * 1024;

fn put_all(
    stage: &EngineFixture,
    records: Vec<PutRecordsEntry<'_>>,
) -> Result<Vec<EntryOutcome>, ApiError> {
    let request = Request { stream: StreamRef::named("s"), records };
    let reply = stage.engine.put_records(&request)?;
    assert_eq!(reply.failed, 0);
    Ok(reply.entries)
}

fn placed(outcome: &EntryOutcome) -> (u32, SequenceNumber) {
    match outcome {
        EntryOutcome::Placed { shard, sequence } => (*shard, *sequence),
        failed @ EntryOutcome::Failed { .. } => panic!("{failed:?}"),
    }
}

#[test]
fn a_record_goes_to_the_shard_that_holds_its_hash() {
    let stage = EngineFixture::with_stream(4);
    let quarter = 1_u128 << 126;
    for (hash, shard) in [
        (0, 0),
        (quarter - 1, 0),
        (quarter, 1),
        (2 * quarter - 1, 1),
        (2 * quarter, 2),
        (3 * quarter, 3),
        (u128::MAX, 3),
    ] {
        assert_eq!(stage.try_put("k", Some(hash)).unwrap(), shard, "{hash}");
    }
    for key in ["a", "pk", "user-123", "ключ"] {
        let expected = HashKey::of_partition_key(key).0 / quarter;
        assert_eq!(u128::from(stage.try_put(key, None).unwrap()), expected, "{key}");
    }
}

#[test]
fn records_of_one_request_keep_their_order_in_each_shard() {
    let stage = EngineFixture::with_stream(3);
    let keys: Vec<String> = (0..500).map(|i| format!("key-{i}")).collect();
    let records = keys.iter().map(|key| entry(key, None, key.as_bytes())).collect();
    let outcomes = put_all(&stage, records).unwrap();
    for shard in 0..3 {
        let wanted: Vec<_> = outcomes
            .iter()
            .zip(&keys)
            .map(|(outcome, key)| (placed(outcome), key))
            .filter(|((index, _), _)| *index == shard)
            .map(|((_, sequence), key)| (sequence, key.clone(), key.clone().into_bytes()))
            .collect();
        assert!(wanted.is_sorted());
        assert_eq!(stage.read_all(shard), wanted);
    }
}

#[test]
fn base64_is_stored_as_the_bytes_that_it_stands_for() {
    let stage = EngineFixture::with_stream(1);
    let base64 = |text: &'static str| PutRecordsEntry {
        partition_key: Cow::Borrowed("k"),
        explicit_hash_key: None,
        data: Payload::Base64(Cow::Borrowed(text)),
    };
    put_all(&stage, vec![base64("aGVsbG8="), entry("k", None, b"raw"), base64("")]).unwrap();
    let data: Vec<Vec<u8>> = stage.read_all(0).into_iter().map(|(_, _, data)| data).collect();
    assert_eq!(data, [b"hello".to_vec(), b"raw".to_vec(), Vec::new()]);
    for wrong in ["abc", "a===", "!!!!"] {
        let records = vec![entry("k", None, b"x"), base64(wrong)];
        refused(put_all(&stage, records), ErrorKind::Serialization, "converted to a Blob");
    }
    assert_eq!(stage.read_all(0).len(), 3, "a refused request stores nothing");
}

#[test]
fn wrong_records_are_refused_in_the_services_words() {
    let stage = EngineFixture::with_stream(1);
    let check = |records: Vec<PutRecordsEntry<'_>>, kind, words: &str| {
        refused(put_all(&stage, records), kind, words);
    };
    let validation = ErrorKind::Validation;
    check(vec![], validation, "'records' failed to satisfy constraint: Member must have length");
    check(vec![entry("k", None, b""); 501], validation, "less than or equal to 500");
    check(vec![entry("", None, b"")], validation, "'records.1.member.partitionKey'");
    let long = "x".repeat(257);
    let second = vec![entry("k", None, b""), entry(&long, None, b"")];
    check(second, validation, "'records.2.member.partitionKey'");
    check(vec![entry("k", Some("x"), b"")], validation, "0|([1-9]\\d{0,38})");
    let above = "340282366920938463463374607431768211456";
    check(vec![entry("k", Some(above), b"")], ErrorKind::InvalidArgument, "[0, 2^128-1]");
    assert!(stage.read_all(0).is_empty());
}

/// Puts the largest record and one larger by a byte, with keys of one and of two bytes per
/// character.
#[test]
fn the_key_counts_to_the_largest_record() {
    for kib in [1_024, 10_240] {
        let stage = EngineFixture::with_stream(1);
        let most = kib * 1024;
        raise_record_maximum(&stage, kib);
        for key in ["k".to_owned(), "ключ".to_owned(), "ж".repeat(256)] {
            let data = vec![7; most + 1];
            let (exact, over) = (&data[..most - key.len()], &data[..=most - key.len()]);
            stage.try_put_entry(entry(&key, None, exact)).unwrap();
            put_all(&stage, vec![entry(&key, None, exact)]).unwrap();
            let words = format!("{} bytes, partition key included, exceeds", most + 1);
            let result = stage.try_put_entry(entry(&key, None, over));
            refused(result, ErrorKind::InvalidArgument, &words);
            let second = vec![entry("k", None, b""), entry(&key, None, over)];
            refused(put_all(&stage, second), ErrorKind::InvalidArgument, "Record 2 of the request");
            // Data that are too large by themselves violate a constraint of their own.
            let result = stage.try_put_entry(entry(&key, None, &data));
            refused(result, ErrorKind::Validation, "at 'data' failed to satisfy constraint");
        }
        assert_eq!(stage.read_all(0).len(), 6, "{kib} KiB");
    }
}

fn raise_record_maximum(stage: &EngineFixture, kib: usize) {
    let request = update_max_record_size::Request {
        stream: StreamTarget::by_arn(&stage.arn()),
        max_record_size_in_kib: Some(i64::try_from(kib).unwrap()),
    };
    stage.engine.update_max_record_size(&request).unwrap();
}

#[test]
fn a_request_has_its_largest_size() {
    for (kib, most, words) in
        [(1_024, 5 * MIB, "exceeds 5 MB limit"), (2_048, 10 * MIB, "exceeds 10 MB limit")]
    {
        let stage = EngineFixture::with_stream(1);
        raise_record_maximum(&stage, kib);
        let data = vec![0; MIB - 1];
        let full = vec![entry("k", None, &data); most / MIB];
        put_all(&stage, full.clone()).unwrap();
        let over = [full, vec![entry("k", None, b"")]].concat();
        refused(put_all(&stage, over), ErrorKind::InvalidArgument, words);
    }
}

#[test]
fn a_number_for_ordering_must_come_from_the_stream() {
    let stage = EngineFixture::with_stream(1);
    let first = stage.put("k");
    let put = |number: &str| {
        stage.engine.put_record(&put_record::Request {
            stream: StreamRef::named("s"),
            entry: entry("k", None, b""),
            sequence_number_for_ordering: Some(Cow::Owned(number.to_owned())),
        })
    };
    assert!(put(&first.to_string()).unwrap().sequence > first);
    refused(put("abc"), ErrorKind::Validation, "sequenceNumberForOrdering");
    for invalid in ["0", "12345", &"9".repeat(56), &"9".repeat(120)] {
        refused(put(invalid), ErrorKind::InvalidArgument, "used in PutRecord on stream s");
    }
}
