//! Iterators and `GetRecords`.

use crate::stage::{EngineFixture, HOUR, NOW, entry, reads, refused};
use anabranch_local::ErrorKind;
use anabranch_local::op::Timestamp;
use anabranch_local::op::{StreamTarget, get_records};
use std::borrow::Cow;

fn keys(stage: &EngineFixture, iterator: &str) -> String {
    let reply = stage.get(iterator).unwrap();
    reads(&reply.records).into_iter().map(|(_, key, _)| key).collect()
}

#[test]
fn the_five_types_begin_where_they_say() {
    let stage = EngineFixture::with_stream(1);
    let a = stage.put("a");
    stage.advance(1_000);
    let b = stage.put("b");
    stage.advance(1_000);
    let latest = stage.iterator(0, "LATEST").unwrap();
    stage.put("c");
    let check = |kind: &str, number: Option<String>, at: Option<u64>, expected: &str| {
        let iterator = stage.iterator_of(0, kind, |request| {
            request.starting_sequence_number = number.clone();
            request.timestamp = at.map(Timestamp);
        });
        assert_eq!(keys(&stage, &iterator.unwrap()), expected, "{kind} {number:?} {at:?}");
    };
    check("TRIM_HORIZON", None, None, "abc");
    assert_eq!(keys(&stage, &latest), "c");
    check("AT_SEQUENCE_NUMBER", Some(b.to_string()), None, "bc");
    check("AFTER_SEQUENCE_NUMBER", Some(b.to_string()), None, "c");
    check("AT_SEQUENCE_NUMBER", Some(a.to_string()), None, "abc");
    let start = stage.shards()[0].sequence_number_range.starting_sequence_number.clone();
    check("AT_SEQUENCE_NUMBER", Some(start.clone()), None, "abc");
    check("AFTER_SEQUENCE_NUMBER", Some(start), None, "abc");
    check("AT_TIMESTAMP", None, Some(NOW), "abc");
    check("AT_TIMESTAMP", None, Some(NOW + 1), "bc");
    check("AT_TIMESTAMP", None, Some(NOW + 1_000), "bc");
    check("AT_TIMESTAMP", None, Some(NOW + 2_000), "c");
    check("AT_TIMESTAMP", None, Some(0), "abc");
}

#[test]
fn wrong_places_are_refused_in_the_services_words() {
    let stage = EngineFixture::with_stream(2);
    let other = stage.try_put_entry(entry("k", Some("0"), b"")).unwrap().sequence;
    let check = |shard, kind: &str, number: Option<&str>, at: Option<u64>, error, words: &str| {
        let result = stage.iterator_of(shard, kind, |request| {
            request.starting_sequence_number = number.map(str::to_owned);
            request.timestamp = at.map(Timestamp);
        });
        refused(result, error, words);
    };
    let invalid = ErrorKind::InvalidArgument;
    check(0, "SOMEWHERE", None, None, ErrorKind::Validation, "enum value set");
    check(0, "AT_SEQUENCE_NUMBER", None, None, invalid, "and no StartingSequenceNumber.");
    check(0, "LATEST", Some("1"), None, invalid, "and also a StartingSequenceNumber.");
    check(0, "AT_SEQUENCE_NUMBER", Some("0"), None, invalid, "did not come from this stream");
    check(0, "AT_SEQUENCE_NUMBER", Some("x"), None, ErrorKind::Validation, "\\d{0,128}");
    let other = other.to_string();
    check(1, "AT_SEQUENCE_NUMBER", Some(&other), None, invalid, "It encodes shardId-000000000000");
    check(0, "AT_TIMESTAMP", None, None, invalid, "Must specify timestampInMillis");
    check(0, "AT_TIMESTAMP", None, Some(NOW + 1), invalid, "cannot be greater than");
    check(9, "LATEST", None, None, ErrorKind::ResourceNotFound, "does not exist");
}

#[test]
fn limit_and_millis_behind_latest_follow_the_reader() {
    let stage = EngineFixture::with_stream(1);
    let mut iterator = stage.iterator(0, "TRIM_HORIZON").unwrap();
    for key in ["a", "b", "c"] {
        stage.put(key);
        stage.advance(1_000);
    }
    for (limit, expected, behind) in [(1, "a", 3_000), (1, "b", 2_000), (5, "c", 0), (5, "", 0)] {
        let reply = stage.get_some(&iterator, Some(limit)).unwrap();
        let got: String = reads(&reply.records).into_iter().map(|(_, key, _)| key).collect();
        assert_eq!((got.as_str(), reply.millis_behind_latest), (expected, behind));
        assert!(reply.child_shards.is_empty());
        iterator = reply.next_iterator.expect("an open shard goes on");
    }
    for limit in [0, 10_001] {
        refused(stage.get_some(&iterator, Some(limit)), ErrorKind::Validation, "'limit'");
    }
}

#[test]
fn who_has_not_read_all_is_behind_also_within_a_millisecond() {
    let stage = EngineFixture::with_stream(1);
    let mut iterator = stage.iterator(0, "TRIM_HORIZON").unwrap();
    for key in ["a", "b"] {
        stage.put(key);
    }
    for behind in [1, 0] {
        let reply = stage.get_some(&iterator, Some(1)).unwrap();
        assert_eq!((reply.records.len(), reply.millis_behind_latest), (1, behind));
        iterator = reply.next_iterator.expect("an open shard goes on");
    }
}

#[test]
fn a_reply_is_at_most_ten_mebibytes_and_ten_thousand_records() {
    let stage = EngineFixture::with_stream(1);
    let data = vec![1; 1_000_000];
    for _ in 0..25 {
        stage.try_put_entry(entry("k", None, &data)).unwrap();
    }
    let mut iterator = stage.iterator(0, "TRIM_HORIZON").unwrap();
    let mut counts = Vec::new();
    for _ in 0..3 {
        let reply = stage.get(&iterator).unwrap();
        assert!(reply.records.bytes() <= 10 * 1024 * 1024);
        counts.push(reply.records.len());
        iterator = reply.next_iterator.unwrap();
    }
    assert_eq!(counts, [10, 10, 5]);
    for i in 0..10_001 {
        stage.put(&i.to_string());
    }
    let reply = stage.get(&iterator).unwrap();
    assert_eq!(reply.records.len(), 10_000);
    assert_eq!(stage.get(&reply.next_iterator.unwrap()).unwrap().records.len(), 1);
}

#[test]
fn iterators_expire_by_age_and_on_request() {
    let stage = EngineFixture::with_stream(1);
    let iterator = stage.iterator(0, "LATEST").unwrap();
    stage.advance(300_000);
    let next = stage.get(&iterator).unwrap().next_iterator.unwrap();
    stage.advance(1);
    refused(stage.get(&iterator), ErrorKind::ExpiredIterator, "Iterator expired. The iterator was");
    stage.get(&next).unwrap();
    stage.engine.expire_iterators(Some("s")).unwrap();
    refused(stage.get(&next), ErrorKind::ExpiredIterator, "Iterator expired.");
    let fresh = stage.iterator(0, "LATEST").unwrap();
    stage.get(&fresh).unwrap();
}

#[test]
fn a_garbage_iterator_is_the_clients_fault() {
    let stage = EngineFixture::with_stream(1);
    for garbage in ["x", "AAAAAAAA", "жжж"] {
        refused(stage.get(garbage), ErrorKind::InvalidArgument, "Invalid ShardIterator.");
    }
    refused(stage.get(""), ErrorKind::Validation, "'shardIterator'");
    refused(stage.get(&"x".repeat(513)), ErrorKind::Validation, "less than or equal to 512");
    let none = get_records::Request::default();
    refused(stage.engine.get_records(&none), ErrorKind::Validation, "Value null");
    stage.create("t", 1);
    let mut request = get_records::Request {
        shard_iterator: Some(Cow::Owned(stage.iterator(0, "LATEST").unwrap())),
        stream_arn: Some(Cow::Owned(stage.arn())),
        limit: None,
    };
    stage.engine.get_records(&request).unwrap();
    request.stream_arn = Some(Cow::Owned(stage.arn().replace("/s", "/t")));
    refused(stage.engine.get_records(&request), ErrorKind::InvalidArgument, "Invalid");
}

#[test]
fn records_past_retention_are_out_of_reach() {
    let stage = EngineFixture::with_stream(1);
    let a = stage.put("a");
    stage.advance(HOUR);
    stage.put("b");
    let all = |kind: &str, number: Option<String>| {
        let iterator =
            stage.iterator_of(0, kind, |request| request.starting_sequence_number = number);
        keys(&stage, &iterator.unwrap())
    };
    stage.advance(23 * HOUR);
    assert_eq!(all("TRIM_HORIZON", None), "ab");
    stage.advance(1);
    assert_eq!(all("TRIM_HORIZON", None), "b");
    assert_eq!(all("AT_SEQUENCE_NUMBER", Some(a.to_string())), "b");
    let request = anabranch_local::op::increase_stream_retention_period::Request {
        stream: StreamTarget::named("s"),
        retention_period_hours: Some(48),
    };
    stage.engine.increase_stream_retention_period(&request).unwrap();
    stage.advance(2 * HOUR);
    assert_eq!(all("TRIM_HORIZON", None), "b");
    stage.advance(23 * HOUR);
    assert_eq!(all("TRIM_HORIZON", None), "");
}

#[test]
fn an_iterator_of_an_earlier_process_has_expired() {
    let before = EngineFixture::with_stream(1);
    for _ in 0..5 {
        before.put("before");
    }
    let iterator = before.iterator(0, "LATEST").unwrap();
    drop(before);
    // Another stream with the same name and number, at the same time.
    let after = EngineFixture::with_stream(1);
    after.put("after");
    refused(after.get(&iterator), ErrorKind::ExpiredIterator, "started again");
    let fresh = after.iterator(0, "TRIM_HORIZON").unwrap();
    assert_eq!(keys(&after, &fresh), "after");
}
