//! Tests of `anabranch tail` and `anabranch cp`.

use crate::stage::CommandFixture;
use serde_json::Value;

fn put(stage: &CommandFixture, from: usize, to: usize) {
    let line = |n: usize| format!("{{\"key\":\"k{}\",\"data\":\"{n}\"}}", n % 5);
    stage.run("put orders", &(from..to).map(line).collect::<Vec<_>>().join("\n")).ok();
}

pub(crate) fn numbers(lines: &[String]) -> Vec<usize> {
    let number = |line: &String| -> usize {
        let record: Value = serde_json::from_str(line).unwrap();
        record["data"].as_str().unwrap().parse().unwrap()
    };
    lines.iter().map(number).collect()
}

#[track_caller]
pub(crate) fn in_order(numbers: &[usize]) {
    for key in 0..5 {
        let of_key: Vec<_> = numbers.iter().filter(|n| *n % 5 == key).collect();
        assert!(of_key.is_sorted(), "key {key}: {of_key:?}");
    }
}

#[test]
fn a_tail_follows_a_split_and_each_key_comes_in_order() {
    let stage = CommandFixture::start(&["orders:2"]);
    put(&stage, 0, 20);
    let mut tail = stage.spawn("tail orders --since trim --json");
    let mut lines = tail.lines(20);
    stage.split("orders");
    put(&stage, 20, 60);
    lines.extend(tail.lines(40));
    let ran = tail.stop().ok();
    assert_eq!(ran.out, "");
    let mut found = numbers(&lines);
    in_order(&found);
    found.sort_unstable();
    assert_eq!(found, (0..60).collect::<Vec<_>>());
}

#[test]
fn a_tail_takes_aggregates_apart_chooses_and_ends_when_it_has_caught_up() {
    let stage = CommandFixture::start(&["orders:2"]);
    let lines: Vec<String> =
        (0..300).map(|n| format!("{{\"key\":\"k{}\",\"data\":\"n {n}\"}}", n % 5)).collect();
    stage.run("put orders --aggregate", &lines.join("\n")).ok();
    assert!(stage.stored("orders").len() < 300, "these are aggregates");
    let all = stage.run("tail orders --until-caught-up", "").ok();
    assert_eq!(all.out.lines().count(), 300);
    let line = all.out.lines().next().unwrap();
    assert!(line.contains(" shard-") && line.contains("\tn "), "{line}");
    let some = stage.run("tail orders --until-caught-up --key k3 --grep 13", "").ok();
    let expected = (0..300).filter(|n| n % 5 == 3 && n.to_string().contains("13")).count();
    assert_eq!(some.out.lines().count(), expected, "{some:?}");
    let few = stage.run("tail orders --since trim --limit 3", "").ok();
    assert_eq!(few.out.lines().count(), 3);
    let none = stage.run("tail orders --since 2h --until-caught-up --key nobody", "").ok();
    assert_eq!(none.out, "");
}

#[test]
fn a_copy_through_a_file_keeps_every_key_in_order() {
    let stage = CommandFixture::start(&["orders:2", "again:3", "direct:1"]);
    put(&stage, 0, 50);
    stage.split("orders");
    put(&stage, 50, 100);
    let ran = stage.run("cp stream:orders orders.jsonl", "").ok();
    assert!(ran.err.contains("copied 100 records of orders to orders.jsonl"), "{ran:?}");
    stage.run("cp orders.jsonl stream:again", "").ok();
    stage.run("cp stream:orders stream:direct --aggregate", "").ok();
    for stream in ["again", "direct"] {
        let ran = stage.run(&format!("tail {stream} --until-caught-up --json"), "").ok();
        let lines: Vec<String> = ran.out.lines().map(str::to_owned).collect();
        let mut found = numbers(&lines);
        in_order(&found);
        found.sort_unstable();
        assert_eq!(found, (0..100).collect::<Vec<_>>(), "{stream}");
    }
    let twice = stage.run("cp stream:orders orders.jsonl", "");
    assert_eq!(twice.code, Some(2), "{twice:?}");
    assert_eq!(stage.run("cp stream:orders stream:orders", "").code, Some(2));
    assert_eq!(stage.run("cp a b", "").code, Some(2));
}

#[test]
fn a_stream_is_not_copied_into_itself_by_whatever_name() {
    let stage = CommandFixture::start(&["orders:1"]);
    put(&stage, 0, 5);
    let summary = stage.call("DescribeStreamSummary", &serde_json::json!({"StreamName": "orders"}));
    let arn = summary["StreamDescriptionSummary"]["StreamARN"].as_str().unwrap();
    let named = stage.endpoint.replace("127.0.0.1", "localhost");
    for to in [
        "stream:orders".to_owned(),
        "stream:orders --to-region us-east-1".to_owned(),
        format!("stream:orders --to-endpoint {named}"),
        format!("stream:{arn}"),
    ] {
        let ran = stage.run(&format!("cp stream:orders {to}"), "");
        assert_eq!(ran.code, Some(2), "{to}: {ran:?}");
        assert!(ran.err.contains("into itself"), "{to}: {ran:?}");
    }
    assert_eq!(stage.stored("orders").len(), 5);
    // A stream of the same name at another endpoint is a different one.
    let other = CommandFixture::start(&["orders:1"]);
    let ran =
        stage.run(&format!("cp stream:orders stream:orders --to-endpoint {}", other.endpoint), "");
    ran.ok();
    assert_eq!(other.stored("orders").len(), 5);
}

/// Encodes bytes as a protobuf field.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

#[test]
fn a_copy_without_what_a_damaged_aggregate_held_says_how_much_is_missing() {
    let stage = CommandFixture::start(&["orders:1", "again:1"]);
    let record = |key: u8, data: &[u8]| field(3, &[&[8, key], &field(3, data)[..]].concat());
    // The third record refers to a key that the aggregate lacks. It and those after it can't be
    // decoded.
    let message =
        [field(1, b"k"), record(0, b"1"), record(0, b"2"), record(9, b"3"), record(0, b"4")]
            .concat();
    let digest = anabranch_model::aggregate::digest::digest(&message);
    let data = [&[0xf3, 0x89, 0x9a, 0xc2], &message[..], &digest[..]].concat();
    let data = base64_simd::STANDARD.encode_to_string(data);
    let ask = serde_json::json!({"StreamName": "orders", "PartitionKey": "k", "Data": data});
    stage.call("PutRecord", &ask);
    put(&stage, 5, 6);
    for to in ["copied", "stream:again", "-"] {
        let ran = stage.run(&format!("cp stream:orders {to}"), "");
        assert_eq!(ran.code, Some(1), "{to}: {ran:?}");
        let said = "2 records of orders can't be read, because the aggregates that held them are";
        assert!(ran.err.contains(said), "{to}: {ran:?}");
    }
    let mut copied = stage.stored("again");
    // The last one has another key.
    copied.sort();
    assert_eq!(copied, ["1", "2", "5"]);
}
