//! The builder against golden bytes, against the decoder and against its own guarantees.

use super::*;
use crate::aggregate::decode::{DecodedAggregate, decode};
use crate::aggregate::dedup_tag::MARK_MAX_BYTES;
use crate::hash::HashRange;
use crate::record::{Record, UserRecord};
use crate::sequence::SequenceNumber;
use proptest::prelude::*;
use sha2::{Digest, Sha256};

type Given<'a> = (&'a str, &'a [u8], Option<u128>);

fn entry((partition_key, data, hash): Given<'_>) -> AggregateRecord<'_> {
    AggregateRecord { partition_key, explicit_hash_key: hash.map(HashKey), data }
}

fn builder(given: &[Given<'_>]) -> AggregateBuilder {
    let mut builder = AggregateBuilder::new();
    for one in given {
        assert_eq!(builder.add_within(&entry(*one), usize::MAX), PushResult::Added);
    }
    builder
}

fn bytes(given: &[Given<'_>]) -> Bytes {
    let mut builder = builder(given);
    let size = builder.size();
    let data = builder.close().unwrap().seal().data;
    assert_eq!(data.len(), size);
    data
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Bytes that two other implementations agree on.
#[test]
fn small_containers_are_the_golden_bytes() {
    let check = |name: &str, given: &[Given<'_>], want: &str| {
        assert_eq!(hex(&bytes(given)), want, "{name}");
    };
    check(
        "one key",
        &[("pk", b"hello", None), ("pk", b"world", None)],
        "f3899ac20a02706b1a0908001a0568656c6c6f1a0908001a05776f726c64\
         4747b0d63591c416fdae617529bdda27",
    );
    check(
        "a key again",
        &[("a", b"1", None), ("b", b"2", None), ("a", b"3", None)],
        "f3899ac20a01610a01621a0508001a01311a0508011a01321a0508001a0133\
         84ada0b6b0fa0b859c6b93080250d115",
    );
    check(
        "explicit hash keys, some",
        &[
            ("a", b"1", Some(0)),
            ("a", b"2", None),
            ("b", b"3", Some(u128::MAX)),
            ("b", b"4", Some(0)),
        ],
        "f3899ac20a01610a0162120130122733343032383233363639323039333834363334\
         36333337343630373433313736383231313435351a07080010001a01311a0508001a\
         01321a07080110011a01331a07080110001a0134\
         a903278eec2951a1253b3b7d84438fa8",
    );
    check(
        "no data",
        &[("a", b"", None), ("a", b"", None)],
        "f3899ac20a01611a0408001a001a0408001a00649fcab2b14c5becd2ed84275f40e531",
    );
    check(
        "keys and data beyond ASCII",
        &[("ключ", "é".as_bytes(), None), ("鍵", b"\xff\x00", None)],
        "f3899ac20a08d0bad0bbd18ed1870a03e98db51a0608001a02c3a91a0608011a02ff00\
         1780a0f4f1830c04f3c3dd85ec31a667",
    );
}

#[test]
fn large_containers_have_the_golden_length_and_digest() {
    let check = |name: &str, given: &[Given<'_>], len: usize, sha256: &str| {
        let data = bytes(given);
        assert_eq!(data[..4], MAGIC, "{name}");
        assert_eq!((data.len(), hex(&Sha256::digest(&data)).as_str()), (len, sha256), "{name}");
    };
    let x = [b'x'; 128];
    check(
        "lengths cross 127",
        &[("a", &x[..127], None), ("a", &x, None), ("a", &x[..123], None)],
        422,
        "e466f91a09b719cda6ceaff988dfb17e519efeaa9cae960f5ea3f05423241c97",
    );
    let keys: Vec<String> = (0..129).map(|i| format!("k{i:03}")).collect();
    let given: Vec<Given<'_>> = keys.iter().map(|key| (key.as_str(), &b"d"[..], None)).collect();
    check(
        "indices cross 127",
        &given,
        1698,
        "b96541f9ff0322c4d617427cdd05cf238f5b0b1460454dbf60dea07e0af9ed99",
    );
}

#[test]
fn sizes_stay_exact_when_both_indices_and_the_table_grow() {
    let keys: Vec<String> = (0..20_000).map(|i| format!("key {i}")).collect();
    let mut builder = AggregateBuilder::new();
    for (i, key) in keys.iter().enumerate() {
        let one = entry((key, &[7; 3], Some(i as u128)));
        let size = builder.size_with(&one);
        assert_eq!(builder.add_within(&one, usize::MAX), PushResult::Added);
        assert_eq!(builder.size(), size, "record {i}");
    }
    let size = builder.size();
    let container = builder.close().unwrap().seal();
    assert_eq!((container.data.len(), container.records), (size, keys.len()));
    let record = Record {
        sequence: SequenceNumber::ZERO,
        partition_key: "a".into(),
        data: container.data,
        arrival_ms: 0,
    };
    let DecodedAggregate::Records(out) = decode(&record, HashRange::ALL) else {
        panic!("not taken apart");
    };
    for (i, got) in out.enumerate() {
        assert_eq!(got.partition_key.as_str(), keys[i]);
        assert_eq!(got.explicit_hash_key, Some(HashKey(i as u128)));
    }
}

#[test]
fn sizes_are_exact_at_every_length_of_a_varint() {
    let lengths = [1, 2, 100, 126, 127, 128, 129, 255, 256, 16_383, 16_384, 65_536];
    let (key, data) = ("k".repeat(256), vec![7; 65_536]);
    for key_len in [1, 127, 128, 256] {
        for len in lengths {
            let given = [(&key[..key_len], &data[..len], None), ("x", &data[..len], Some(3))];
            let mut builder = AggregateBuilder::new();
            for one in given {
                let size = builder.size_with(&entry(one));
                builder.add_within(&entry(one), usize::MAX);
                assert_eq!(builder.size(), size, "a key of {key_len} and {len} bytes");
            }
            let size = builder.size();
            assert_eq!(builder.close().unwrap().seal().data.len(), size);
        }
    }
}

#[test]
fn a_mark_comes_back_and_changes_nothing_else() {
    let read = |data: Bytes| {
        let sequence = SequenceNumber::ZERO;
        let record = Record { sequence, partition_key: "a".into(), data, arrival_ms: 0 };
        match decode(&record, HashRange::ALL) {
            DecodedAggregate::Records(records) => records,
            other => panic!("{other:?}"),
        }
    };
    let mark = DedupTag { producer: u64::MAX - 7, container: 3 };
    // Includes lengths at which the tag makes the length prefix of its record longer.
    for length in (0..140).chain(16_250..16_400) {
        let large = vec![7; length];
        let given = [("a", &b"1"[..], Some(1)), ("b", b"", None), ("a", &large[..], None)];
        let mut builder = builder(&given);
        let size = builder.size();
        let container = builder.close_tagged(mark).unwrap().seal();
        let grown = container.data.len() - size;
        assert!((FIELD_BYTES..=MARK_MAX_BYTES).contains(&grown), "{length}: {grown} bytes more");
        let (marked, plain) = (read(container.data), read(bytes(&given)));
        assert_eq!((marked.dedup_tag(), plain.dedup_tag()), (Some(mark), None), "{length}");
        let (marked, plain): (Vec<_>, Vec<_>) = (marked.collect(), plain.collect());
        assert_eq!(marked, plain, "{length}: the records are the same");
        assert!(builder.is_empty(), "a closed builder starts anew");
    }
    let mut alone = builder(&[("a", b"1", None)]);
    assert_eq!(alone.close_tagged(mark).unwrap().seal().data, "1", "a record alone has no mark");
    assert_eq!(alone.close_tagged(mark), None);
}

#[test]
fn an_empty_builder_has_nothing_to_close() {
    let mut builder = AggregateBuilder::new();
    assert_eq!((builder.size(), builder.close()), (0, None));
    assert!(!builder.remove_last());
}

#[test]
fn a_record_alone_goes_as_it_is_under_its_own_key() {
    for given in [("pk", &b"data"[..], None), ("pk", b"", Some(7)), ("k", &MAGIC, Some(u128::MAX))]
    {
        let container = builder(&[given]).close().unwrap().seal();
        assert_eq!(container.partition_key.as_str(), given.0);
        assert_eq!(container.explicit_hash_key, given.2.map(HashKey));
        assert_eq!(container.data, given.1);
        assert_eq!((container.records, container.bytes()), (1, given.0.len() + given.1.len()));
    }
}

#[test]
fn an_aggregate_goes_where_its_first_record_lies() {
    let place = |given: &[Given<'_>]| {
        let container = builder(given).close().unwrap().seal();
        assert_eq!(container.partition_key.as_str(), "a");
        container.explicit_hash_key.unwrap()
    };
    let md5 = HashKey::of_partition_key("x");
    assert_eq!(place(&[("x", b"1", None), ("y", b"2", Some(3))]), md5);
    assert_eq!(place(&[("x", b"1", Some(9)), ("y", b"2", Some(3))]), HashKey(9));
}

#[test]
fn a_closed_builder_starts_anew() {
    let given = [("a", &b"1"[..], Some(1)), ("b", b"2", None)];
    let mut builder = builder(&[("z", b"0", Some(5)), ("a", b"1", None)]);
    builder.close();
    assert!(builder.is_empty());
    for one in given {
        builder.add_within(&entry(one), usize::MAX);
    }
    assert_eq!(builder.close().unwrap().seal().data, bytes(&given));
}

#[test]
fn the_maximum_holds_to_the_byte() {
    let first = ("a", &[1; 50][..], None);
    let second = ("b", &[2; 50][..], Some(12));
    let exact = bytes(&[first, second]).len();
    for (max_bytes, room) in
        [(exact - 1, PushResult::Full), (exact, PushResult::Added), (exact + 1, PushResult::Added)]
    {
        let mut builder = builder(&[first]);
        assert_eq!(builder.size_with(&entry(second)), exact);
        assert_eq!(builder.add_within(&entry(second), max_bytes), room, "{max_bytes}");
        assert_eq!(builder.size(), if room == PushResult::Added { exact } else { 50 });
    }
}

#[test]
fn a_record_over_the_maximum_travels_alone() {
    let mut builder = AggregateBuilder::new();
    assert_eq!(builder.add_within(&entry(("a", &[0; 200], None)), 100), PushResult::Added);
    assert_eq!(builder.add_within(&entry(("a", b"", None)), 100), PushResult::Full);
    assert_eq!(builder.close().unwrap().seal().data.len(), 200);
}

#[test]
fn one_mebibyte_and_ten_are_taken_and_a_byte_over_ten_is_not() {
    let data = vec![7; RECORD_MAX_BYTES_HIGHEST];
    let offer = |len: usize| {
        let mut builder = AggregateBuilder::new();
        builder.add_within(&entry(("k", &data[..len], None)), usize::MAX)
    };
    for (len, room) in [
        ((1 << 20) - 1, PushResult::Added),
        (1 << 20, PushResult::Added),
        ((1 << 20) + 1, PushResult::Added),
        (RECORD_MAX_BYTES_HIGHEST - 1, PushResult::Added),
        (RECORD_MAX_BYTES_HIGHEST, PushResult::TooLarge),
    ] {
        assert_eq!(offer(len), room, "{len}");
    }
    let half = &data[..RECORD_MAX_BYTES_HIGHEST / 2];
    let mut builder = builder(&[("k", half, None)]);
    assert_eq!(builder.add_within(&entry(("k", half, None)), usize::MAX), PushResult::Full);
}

#[test]
fn an_aggregate_and_its_own_key_stay_within_the_largest_record() {
    let most = RECORD_MAX_BYTES_HIGHEST - AGGREGATE_PARTITION_KEY.len();
    let data = vec![7; most];
    let mut builder = builder(&[("k", &data[..most / 2], None)]);
    let framing = builder.size_with(&entry(("k", &data[..most / 2], None))) - most / 2;
    for (bytes, room) in
        [(most - framing + 1, PushResult::Full), (most - framing, PushResult::Added)]
    {
        let next = entry(("k", &data[..bytes], None));
        assert_eq!(builder.add_within(&next, usize::MAX), room, "{bytes}");
    }
    let closed = builder.close().unwrap().seal();
    assert_eq!(closed.partition_key.len() + closed.data.len(), RECORD_MAX_BYTES_HIGHEST);
}

/// Few keys and hash keys, so that they repeat.
fn record() -> impl Strategy<Value = (String, Vec<u8>, Option<u128>)> {
    (
        prop_oneof!["[ab]{1,2}", "[a-z]{1,256}", "[鍵ключ]{1,8}"],
        proptest::collection::vec(any::<u8>(), 0..300),
        proptest::option::of(prop_oneof![0..3_u128, any::<u128>(), Just(u128::MAX)]),
    )
}

fn records() -> impl Strategy<Value = Vec<(String, Vec<u8>, Option<u128>)>> {
    proptest::collection::vec(record(), 1..60)
}

fn given(records: &[(String, Vec<u8>, Option<u128>)]) -> Vec<Given<'_>> {
    records.iter().map(|(key, data, hash)| (key.as_str(), data.as_slice(), *hash)).collect()
}

proptest! {
    #[test]
    fn the_size_is_exact_before_and_after_each_record(records in records()) {
        let given = given(&records);
        let mut builder = AggregateBuilder::new();
        for i in 0..given.len() {
            let size = builder.size_with(&entry(given[i]));
            builder.add_within(&entry(given[i]), usize::MAX);
            prop_assert_eq!(builder.size(), size);
            prop_assert_eq!(bytes(&given[..=i]).len(), size);
        }
    }

    #[test]
    fn a_record_taken_back_leaves_no_trace(records in records(), extra in records()) {
        let mut builder = builder(&given(&records));
        for one in given(&extra) {
            builder.add_within(&entry(one), usize::MAX);
        }
        for _ in &extra {
            prop_assert!(builder.remove_last());
        }
        prop_assert_eq!(builder.len(), records.len());
        prop_assert_eq!(builder.close().unwrap().seal().data, bytes(&given(&records)));
    }

    #[test]
    fn what_goes_in_comes_out(records in records()) {
        prop_assume!(records.len() > 1);
        let record = Record {
            sequence: SequenceNumber::ZERO,
            partition_key: "a".into(),
            data: bytes(&given(&records)),
            arrival_ms: 9,
        };
        let DecodedAggregate::Records(out) = decode(&record, HashRange::ALL) else {
            return Err(TestCaseError::fail("not taken apart"));
        };
        let out: Vec<UserRecord> = out.collect();
        prop_assert_eq!(out.len(), records.len());
        for (i, (got, (key, data, hash))) in out.iter().zip(&records).enumerate() {
            prop_assert_eq!(got.partition_key.as_str(), key);
            prop_assert_eq!(&got.data, data);
            prop_assert_eq!(got.explicit_hash_key, hash.map(HashKey));
            prop_assert_eq!((got.sub, got.aggregated, got.arrival_ms), (i as u64, true, 9));
        }
    }

    #[test]
    fn sealing_together_is_sealing_each(batches in proptest::collection::vec(records(), 0..12)) {
        let close = |batch: &Vec<_>| builder(&given(batch)).close().unwrap();
        let together = seal_many(batches.iter().map(close).collect());
        let each: Vec<KinesisRecord> = batches.iter().map(|batch| close(batch).seal()).collect();
        prop_assert_eq!(together, each);
    }

    #[test]
    fn no_container_exceeds_its_maximum(records in records(), max_bytes in 64_usize..4_000) {
        let mut builder = AggregateBuilder::new();
        let mut out = Vec::new();
        for one in given(&records) {
            if builder.add_within(&entry(one), max_bytes) == PushResult::Full {
                out.push(builder.close().unwrap().seal());
                prop_assert_eq!(builder.add_within(&entry(one), max_bytes), PushResult::Added);
            }
        }
        out.extend(builder.close().map(UnsealedRecord::seal));
        prop_assert_eq!(out.iter().map(|c| c.records).sum::<usize>(), records.len());
        prop_assert!(out.iter().all(|c| c.records == 1 || c.data.len() <= max_bytes));
    }
}
