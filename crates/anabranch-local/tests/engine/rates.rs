//! Rate limits of a shard.

use crate::stage::{EngineFixture, entry, refused};
use anabranch_local::op::put_records::{EntryOutcome, Request};
use anabranch_local::{EngineOptions, ErrorKind, StreamRef};

const RATE: ErrorKind = ErrorKind::ProvisionedThroughputExceeded;

fn limited() -> EngineFixture {
    let stage =
        EngineFixture::new(EngineOptions { enforce_limits: true, ..EngineOptions::instant() });
    stage.create("s", 2);
    stage
}

/// Puts `count` records of `size` bytes to shard 0. Returns how many were stored.
fn placed(stage: &EngineFixture, count: usize, size: usize) -> usize {
    let data = vec![0; size];
    let records = vec![entry("k", Some("0"), &data); count];
    let request = Request { stream: StreamRef::named("s"), records };
    let reply = stage.engine.put_records(&request).unwrap();
    for outcome in &reply.entries {
        if let EntryOutcome::Failed { code, message } = outcome {
            assert_eq!(*code, RATE);
            assert_eq!(
                message,
                "Rate exceeded for shard shardId-000000000000 in stream s under account \
                 000000000000."
            );
        }
    }
    count - reply.failed
}

#[test]
fn a_shard_takes_a_thousand_records_a_second() {
    let stage = limited();
    let taken: usize = (0..3).map(|_| placed(&stage, 500, 1)).sum();
    assert_eq!(taken, 1_000);
    refused(stage.try_put("k", Some(0)), RATE, "Rate exceeded for shard shardId-000000000000");
    stage.try_put("k", Some(u128::MAX)).expect("the other shard has its own rate");
    stage.advance(100);
    assert_eq!(placed(&stage, 500, 1), 100);
}

#[test]
fn a_shard_takes_a_mebibyte_a_second() {
    let stage = limited();
    assert_eq!(placed(&stage, 20, 99_999), 10, "with the key, 100,000 bytes each");
    stage.advance(1_000);
    assert_eq!(placed(&stage, 20, 99_999), 10);
}

#[test]
fn a_shard_answers_five_reads_a_second() {
    let stage = limited();
    let iterator = stage.iterator(0, "LATEST").unwrap();
    for _ in 0..5 {
        stage.get(&iterator).unwrap();
    }
    refused(stage.get(&iterator), RATE, "Rate exceeded for shard shardId-000000000000");
    stage.get(&stage.iterator(1, "LATEST").unwrap()).unwrap();
    stage.advance(200);
    stage.get(&iterator).unwrap();
}

#[test]
fn a_large_reply_is_paid_for_by_waiting() {
    let stage = limited();
    let data = vec![0; 1_000_000];
    for _ in 0..8 {
        stage.try_put_entry(entry("k", Some("0"), &data)).unwrap();
        stage.advance(1_000);
    }
    let iterator = stage.iterator(0, "TRIM_HORIZON").unwrap();
    assert_eq!(stage.get(&iterator).unwrap().records.len(), 8);
    stage.advance(2_000);
    refused(stage.get(&iterator), RATE, "Rate exceeded");
    stage.advance(1_000);
    stage.get(&iterator).unwrap();
}

#[test]
fn nothing_is_limited_unless_asked() {
    let stage = EngineFixture::with_stream(2);
    let taken: usize = (0..10).map(|_| placed(&stage, 500, 10_000)).sum();
    assert_eq!(taken, 5_000);
    let iterator = stage.iterator(0, "TRIM_HORIZON").unwrap();
    (0..20).for_each(|_| drop(stage.get(&iterator).unwrap()));
}
