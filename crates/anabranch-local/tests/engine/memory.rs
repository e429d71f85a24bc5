//! Memory used by records: freed when they are past retention, and limited.

use crate::stage::{EngineFixture, HOUR, NOW, entry, id, refused};
use anabranch_local::op::put_records::{self, EntryOutcome};
use anabranch_local::op::{StreamTarget, create_stream, delete_stream};
use anabranch_local::{Clock, Engine, EngineOptions, ErrorKind, Local, StreamRef};
use std::time::Duration;

const RECORD: usize = 100_000;

fn put(engine: &Engine, hash: &str) -> Vec<EntryOutcome> {
    let data = vec![7; RECORD];
    let request = put_records::Request {
        stream: StreamRef::named("s"),
        records: vec![entry("k", Some(hash), &data)],
    };
    engine.put_records(&request).unwrap().entries
}

#[test]
fn closed_shards_and_deleted_streams_give_their_memory_back() {
    let stage = EngineFixture::with_stream(1);
    (0..10).for_each(|_| drop(put(&stage.engine, "0")));
    stage.split(0, 1 << 127).unwrap();
    put(&stage.engine, "0");
    assert!(stage.engine.memory_bytes() > 11 * RECORD);
    stage.advance(23 * HOUR);
    stage.engine.free_memory();
    assert!(stage.engine.memory_bytes() > 11 * RECORD, "nothing is past retention");
    put(&stage.engine, "0");
    stage.advance(2 * HOUR);
    stage.engine.free_memory();
    let left = stage.engine.memory_bytes();
    assert!((RECORD..3 * RECORD + 300_000).contains(&left), "{left} bytes");
    let request = delete_stream::Request { stream: StreamTarget::named("s"), ..Default::default() };
    stage.engine.delete_stream(&request).unwrap();
    stage.advance(HOUR);
    stage.engine.free_memory();
    assert_eq!(stage.engine.memory_bytes(), 0);
}

#[tokio::test]
async fn a_server_frees_memory_by_its_clock() {
    let clock = Clock::manual(NOW);
    let builder = Local::builder().with_options(EngineOptions::instant()).with_clock(clock.clone());
    let local = builder.start().await.unwrap();
    let engine = local.engine();
    let request = create_stream::Request {
        stream_name: Some("s".to_owned()),
        shard_count: Some(1),
        ..Default::default()
    };
    engine.create_stream(&request).unwrap();
    (0..10).for_each(|_| drop(put(engine, "0")));
    engine.split_now("s", None).unwrap();
    assert!(engine.memory_bytes() > 10 * RECORD);
    // No calls from here on.
    while engine.memory_bytes() > 0 {
        clock.advance(HOUR);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    local.stop().await;
}

#[test]
fn puts_beyond_the_bound_are_throttled_until_retention_frees_room() {
    let options = EngineOptions { max_memory_bytes: Some(2_000_000), ..EngineOptions::instant() };
    let stage = EngineFixture::new(options);
    stage.create("s", 2);
    let high = (u128::MAX / 4 * 3).to_string();
    let mut placed = 0;
    let (code, message) = loop {
        let hash = if placed % 2 == 0 { "0" } else { &high };
        match &put(&stage.engine, hash)[..] {
            [EntryOutcome::Placed { .. }] => placed += 1,
            [EntryOutcome::Failed { code, message }] => break (*code, message.clone()),
            other => panic!("{other:?}"),
        }
        assert!(placed < 20, "{} bytes", stage.engine.memory_bytes());
    };
    assert!(placed >= 10, "{placed} records");
    assert_eq!(code, ErrorKind::ProvisionedThroughputExceeded);
    assert!(message.contains("--max-memory"), "{message}");
    let data = vec![7; RECORD];
    let one = stage.try_put_entry(entry("k", Some("0"), &data));
    refused(one, ErrorKind::ProvisionedThroughputExceeded, "--max-memory");
    // Acknowledged records are readable, and small records still fit.
    let held = stage.read_all(0).len() + stage.read_all(1).len();
    assert_eq!(held, placed, "of {} and {}", id(0), id(1));
    stage.put("small");
    stage.advance(25 * HOUR);
    // A put frees the memory that it needs, in other shards too.
    for round in 0..placed {
        let put = put(&stage.engine, &high);
        assert!(matches!(put[..], [EntryOutcome::Placed { .. }]), "round {round}: {put:?}");
    }
}
