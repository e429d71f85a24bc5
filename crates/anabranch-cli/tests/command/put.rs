//! Tests of `anabranch put`.

use crate::stage::CommandFixture;
use serde_json::Value;

#[test]
fn lines_are_put_in_order_and_every_reader_understands_them() {
    let stage = CommandFixture::start(&["orders:1"]);
    let lines: Vec<String> =
        (0..500).map(|n| format!("{{\"key\":\"k{}\",\"data\":\"{n}\"}}", n % 7)).collect();
    let ran = stage.run("put orders", &lines.join("\n")).ok();
    assert!(ran.err.contains("orders: 500 placed"), "{ran:?}");
    let stored = stage.stored("orders");
    assert_eq!(stored.len(), 500);
    for key in 0..7 {
        let of_key: Vec<u32> =
            stored.iter().map(|data| data.parse().unwrap()).filter(|n| n % 7 == key).collect();
        assert!(of_key.is_sorted(), "key {key}: {of_key:?}");
    }
}

#[test]
fn plain_lines_bytes_and_hash_keys_go_in_as_they_are() {
    let stage = CommandFixture::start(&["orders:2"]);
    stage.run("put orders --lines --key k", "one\n two \n\nthree").ok();
    assert_eq!(stage.stored("orders"), ["one", " two ", "", "three"]);
    std::fs::write(
        stage.folder.path().join("records"),
        "{\"key\":\"a\",\"data_base64\":\"/w==\",\"hash_key\":\"0\"}\n\
         {\"key\":\"b\",\"data\":\"last\",\"hash_key\":\"340282366920938463463374607431768211455\"}\n",
    )
    .unwrap();
    let ran = stage.run("put orders records --json --aggregate", "").ok();
    let summary: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&summary["placed"], &summary["refused"]), (&2.into(), &0.into()), "{ran:?}");
    let stored = stage.stored("orders");
    assert!(
        stored.first().unwrap().contains('\u{fffd}') || stored.contains(&"\u{fffd}".to_owned())
    );
    assert_eq!(stored.last().unwrap(), "last");
}

#[test]
fn a_bad_line_stops_the_put_there_and_is_named() {
    let stage = CommandFixture::start(&["orders:1"]);
    let input = "{\"key\":\"a\",\"data\":\"1\"}\nnonsense\n{\"key\":\"a\",\"data\":\"2\"}\n";
    let ran = stage.run("put orders", input);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("standard input, line 2: it is not a record"), "{ran:?}");
    assert_eq!(stage.stored("orders"), ["1"]);
    let ran = stage.run("put orders --skip-bad-lines", input);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(stage.stored("orders"), ["1", "1", "2"]);
}

#[test]
fn a_record_that_is_too_large_is_refused_by_its_line() {
    let stage = CommandFixture::start(&["orders:1"]);
    let large = "x".repeat(11 << 20);
    let input =
        format!("{{\"key\":\"a\",\"data\":\"{large}\"}}\n{{\"key\":\"b\",\"data\":\"2\"}}\n");
    let ran = stage.run("put orders", &input);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("line 1: the record has"), "{ran:?}");
    assert!(ran.err.contains("1 placed (1 bytes), 1 refused"), "{ran:?}");
}

#[test]
fn a_record_that_is_too_large_stops_its_key_and_the_summary_names_it() {
    let stage = CommandFixture::start(&["orders:1"]);
    let large = "x".repeat(11 << 20);
    let line = |key: &str, data: &str| format!("{{\"key\":\"{key}\",\"data\":\"{data}\"}}\n");
    let input = [line("a", "1"), line("a", &large), line("a", "3"), line("b", "4")].concat();
    let ran = stage.run("put orders", &input);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("line 3: an earlier record of its key"), "{ran:?}");
    assert!(ran.err.contains("2 placed (2 bytes), 2 refused"), "{ran:?}");
    assert!(ran.err.contains("keys stopped by a refused record: \"a\""), "{ran:?}");
    assert_eq!(stage.stored("orders"), ["1", "4"]);
    let ran = stage.run("put orders --json", &input);
    let summary: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(summary["stopped_keys"], serde_json::json!(["a"]), "{ran:?}");
}

#[test]
fn a_producer_is_named_and_its_aggregates_are_marked_on_request() {
    let stage = CommandFixture::start(&["orders:1", "other:1"]);
    // Records of a key wait for each other and are then sent together, with or without a shard map.
    let line = |n| format!("{{\"key\":\"k{}\",\"data\":\"{n}\"}}", n % 5);
    let lines: Vec<String> = (0..500).map(line).collect();
    let marked = || stage.stored("orders").iter().filter(|data| data.contains("anabranch")).count();
    let ran = stage.run("put orders --aggregate --json", &lines.join("\n")).ok();
    let summary: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(summary["producer"].as_str().unwrap().len(), 16, "{summary}");
    assert_eq!(marked(), 0);
    let words = "put orders --aggregate --dedup-tags --producer-id till-7 --json";
    let ran = stage.run(words, &lines.join("\n")).ok();
    let summary: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(summary["producer"], "till-7");
    assert!(marked() > 0, "no aggregate is marked");
    // Readers do not see the tag.
    let tail = stage.run("tail orders --until-caught-up --json", "").ok();
    assert_eq!(tail.out.lines().count(), 1_000);
    stage.run("cp stream:orders stream:other --aggregate --marks --producer-id copier", "").ok();
    for (words, why) in [
        ("put orders --dedup-tags", "--aggregate"),
        ("put orders --producer-id=", "can't be empty"),
        ("cp stream:orders stream:other --dedup-tags", "--aggregate"),
        ("relay --stream orders --dedup-tags --no-aggregation", "--no-aggregation"),
    ] {
        let ran = stage.run(words, "");
        assert_eq!(ran.code, Some(2), "{words}: {ran:?}");
        assert!(ran.err.contains(why), "{words}: {ran:?}");
    }
}
