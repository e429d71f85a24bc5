//! Refusals: bad input, a missing stream, and keys that stop.

use crate::stage::{ProducerFixture, STREAM};
use anabranch::producer::{
    Aggregation, Bulk, NewRecord, OrderingKey, Outcome, Producer, ProducerStartError, PutError,
    RejectReason, TryPutError,
};
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::Operation;
use anabranch_model::aggregate::AGGREGATE_PARTITION_KEY;
use anabranch_model::aggregate::encode::{AggregateBuilder, AggregateRecord};
use anabranch_model::hash::HashKey;
use anabranch_model::retry::Fault;
use std::collections::BTreeSet;
use std::time::Duration;

#[tokio::test]
async fn bad_records_are_refused_by_name_before_they_are_taken() {
    let stage = ProducerFixture::new(1);
    let producer = Producer::new(STREAM).with_kinesis(stage.api()).start().await.unwrap();
    let put = async |key: String, bytes: usize| producer.put(key, vec![0; bytes]).await;
    assert_eq!(put(String::new(), 1).await.unwrap_err(), PutError::KeyEmpty);
    let long = put("ж".repeat(257), 1).await.unwrap_err();
    assert_eq!(long, PutError::KeyTooLong { chars: 257 });
    let large = put("k".to_owned(), 1 << 20).await.unwrap_err();
    assert_eq!(large, PutError::TooLarge { bytes: (1 << 20) + 1, max_bytes: 1 << 20 });
    let told = large.to_string();
    assert!(told.starts_with("the record has 1048577 bytes, partition key included"), "{told}");
}

/// Puts the largest record of a key with every kind of put, and then one with a byte more.
async fn check_border(kib: i64, aggregation: Aggregation, key: &str) {
    let stage = ProducerFixture::new(1);
    stage.delete();
    stage.create(1, Some(kib));
    let builder = Producer::new(STREAM).with_aggregation(aggregation).with_rate_percent(1_000);
    let producer = builder.with_kinesis(stage.api()).start().await.unwrap();
    let max_bytes = usize::try_from(kib).unwrap() * 1024;
    let (exact, over) = (vec![1; max_bytes - key.len()], vec![2; max_bytes - key.len() + 1]);
    let too_large = PutError::TooLarge { bytes: max_bytes + 1, max_bytes };
    let small = producer.put(key, "small").await.unwrap();
    assert_eq!(producer.put(key, over.clone()).await.unwrap_err(), too_large);
    let refused = producer.try_put_record(NewRecord::new(key, over.clone())).unwrap_err();
    assert_eq!(refused, TryPutError::Refused(too_large.clone()));
    let mut bulk = Bulk::new();
    bulk.push(key, &exact);
    bulk.push(key, &over);
    let refused = producer.put_bulk(bulk).await.unwrap_err();
    assert_eq!((refused.at, refused.why), (Some(1), too_large));
    // A refused record stops nothing, and the largest one passes behind a small one.
    let large = producer.put(key, exact.clone()).await.unwrap();
    let mut bulk = Bulk::new();
    bulk.push(key, &exact);
    let bulk = producer.put_bulk(bulk).await.unwrap();
    producer.flush().await;
    assert!(small.await.is_placed() && large.await.is_placed() && bulk.await.all_placed());
    let sizes: Vec<usize> = stage.read_all().await.iter().map(|record| record.data.len()).collect();
    assert_eq!(sizes, [5, exact.len(), exact.len()], "{kib} KiB, {aggregation:?}, {key}");
}

#[tokio::test]
async fn the_key_counts_to_the_largest_record() {
    for kib in [1_024, 10_240] {
        for aggregation in [Aggregation::ByShard, Aggregation::Off] {
            for key in ["k", "ключ", &"ж".repeat(256)] {
                check_border(kib, aggregation, key).await;
            }
        }
    }
}

/// Two records whose aggregate has exactly the stream's maximum, including its key, are sent
/// together. With a byte more they are sent separately.
#[tokio::test]
async fn the_key_of_an_aggregate_counts_to_the_largest_record() {
    for kib in [1_024, 10_240] {
        let max_bytes = usize::try_from(kib).unwrap() * 1024;
        for (over, containers) in [(0, 1), (1, 2)] {
            let stage = ProducerFixture::new(1);
            stage.delete();
            stage.create(1, Some(kib));
            let builder = Producer::new(STREAM).with_aggregate_bytes(10 << 20..=10 << 20);
            let builder = builder.with_rate_percent(1_000).with_linger(Duration::from_millis(100));
            let producer = builder.with_kinesis(stage.api()).start().await.unwrap();
            let first = vec![1; max_bytes / 2];
            let mut aggregate = AggregateBuilder::new();
            let entry =
                |data| AggregateRecord { partition_key: "k", explicit_hash_key: None, data };
            aggregate.add_within(&entry(&first), usize::MAX);
            let framing = aggregate.size_with(&entry(&first)) - first.len();
            let second = vec![2; max_bytes - AGGREGATE_PARTITION_KEY.len() - framing + over];
            let mut tickets = Vec::new();
            for data in [&first, &second] {
                tickets.push(producer.put("k", data.clone()).await.unwrap());
            }
            let mut sequences = BTreeSet::new();
            for ticket in tickets {
                let Outcome::Placed { sequence, attempts, .. } = ticket.await else { panic!() };
                assert_eq!(attempts.count(), 1);
                sequences.insert(sequence);
            }
            assert_eq!(sequences.len(), containers, "{kib} KiB and {over} bytes");
        }
    }
}

#[tokio::test]
async fn no_aggregate_is_larger_than_the_stream_takes() {
    let stage = ProducerFixture::new(1);
    // The bounds are above the stream's maximum, which also applies.
    let builder = Producer::new(STREAM).with_aggregate_bytes(2 << 20..=4 << 20);
    let producer =
        builder.with_rate_percent(1_000).with_kinesis(stage.api()).start().await.unwrap();
    let mut tickets = Vec::new();
    for number in 0..30 {
        tickets.push(producer.put(format!("k{number}"), vec![7; 100_000]).await.unwrap());
    }
    producer.flush().await;
    for ticket in tickets {
        let outcome = ticket.await;
        let once = matches!(&outcome, Outcome::Placed { attempts, .. } if attempts.count() == 1);
        assert!(once, "{outcome:?}");
    }
}

#[tokio::test]
async fn records_at_every_edge_are_placed_and_come_back_as_they_were() {
    for aggregation in [Aggregation::ByShard, Aggregation::Off] {
        let stage = ProducerFixture::new(2);
        let builder = Producer::new(STREAM).with_aggregation(aggregation).with_rate_percent(1_000);
        let producer = builder.with_kinesis(stage.api()).start().await.unwrap();
        // Without data at all, at both ends of the hash range, with keys of one to 256 characters,
        // and exactly as large as the stream takes.
        let mut records = Vec::new();
        for (at, size) in [0, 1, (1 << 20) - 1, 1 << 20].into_iter().enumerate() {
            let key = "k".repeat([1, 2, 255, 256][at]);
            let bytes = usize::saturating_sub(size, key.len());
            for hash in [None, Some(HashKey::MIN), Some(HashKey::MAX)] {
                records.push((key.clone(), hash, vec![b'a' + u8::try_from(at).unwrap(); bytes]));
            }
        }
        let mut tickets = Vec::new();
        for (key, hash, data) in &records {
            let mut record = NewRecord::new(key.clone(), data.clone());
            if let Some(hash) = hash {
                record = record.with_explicit_hash_key(*hash);
            }
            tickets.push(producer.put_record(record).await.unwrap());
        }
        producer.flush().await;
        for ticket in tickets {
            assert!(ticket.await.is_placed());
        }
        let delivered = stage.read_all().await.into_iter();
        let mut delivered: Vec<_> = delivered
            .map(|record| (record.partition_key.to_string(), record.data.to_vec()))
            .collect();
        let mut put: Vec<_> = records.into_iter().map(|(key, _, data)| (key, data)).collect();
        delivered.sort();
        put.sort();
        assert!(delivered == put, "{aggregation:?}: {} came", delivered.len());
    }
}

#[tokio::test]
async fn a_key_with_a_hash_of_its_own_stops_and_is_resumed_by_itself() {
    let stage = ProducerFixture::new(1);
    let producer = Producer::new(STREAM).with_kinesis(stage.api()).start().await.unwrap();
    let at = |hash: u128, data: &'static str| {
        producer.put_record(NewRecord::new("a", data).with_explicit_hash_key(HashKey(hash)))
    };
    stage.delete();
    assert!(!at(7, "1").await.unwrap().await.is_placed());
    stage.create(1, None);
    let key = OrderingKey { key: "a".into(), explicit: Some(HashKey(7)) };
    assert_eq!(producer.stopped_keys().await, std::slice::from_ref(&key));
    assert!(producer.put("a", "2").await.unwrap().await.is_placed(), "another key");
    assert!(at(8, "3").await.unwrap().await.is_placed(), "another one");
    assert!(!producer.resume("a").await, "without its hash it is not the one that stopped");
    assert!(!at(7, "4").await.unwrap().await.is_placed());
    assert!(producer.resume_key(key).await);
    assert!(at(7, "5").await.unwrap().await.is_placed());
}

#[tokio::test]
async fn a_stream_that_is_not_there_is_refused_at_the_start() {
    let stage = ProducerFixture::new(1);
    let error = Producer::new("nowhere").with_kinesis(stage.api()).start().await.unwrap_err();
    assert!(matches!(&error, ProducerStartError::Missing { .. }), "{error}");
    assert!(error.to_string().contains("nowhere"), "{error}");
    let error = Producer::new(STREAM)
        .with_max_requests(0)
        .with_kinesis(stage.api())
        .start()
        .await
        .unwrap_err();
    assert!(matches!(error, ProducerStartError::Config(_)));
}

#[tokio::test]
async fn a_stream_that_goes_away_stops_its_keys_until_they_are_resumed() {
    let stage = ProducerFixture::new(2);
    let producer = Producer::new(STREAM).with_kinesis(stage.api()).start().await.unwrap();
    assert!(producer.put("a", "1").await.unwrap().await.is_placed());
    stage.delete();
    let missing = producer.put("a", "2").await.unwrap().await;
    let Outcome::Rejected { why: RejectReason::Refused { fault: Fault::Missing, .. }, attempts } =
        missing
    else {
        panic!("{missing:?}")
    };
    assert_eq!(attempts.count(), 1, "a missing stream is not tried again");
    stage.create(4, None);
    let stopped = producer.put("a", "3").await.unwrap().await;
    assert!(
        matches!(stopped, Outcome::Rejected { why: RejectReason::KeyStopped, .. }),
        "{stopped:?}"
    );
    assert!(producer.put("b", "1").await.unwrap().await.is_placed(), "other keys go on");
    assert_eq!(producer.stopped_keys().await.len(), 1);
    assert!(producer.resume("a").await);
    assert!(!producer.resume("a").await);
    assert!(producer.put("a", "4").await.unwrap().await.is_placed());
    assert_eq!(stage.first_deliveries().await["a"], [4]);
}

#[tokio::test]
async fn a_deadline_ends_in_expired_or_unknown_and_stops_the_key() {
    let stage = ProducerFixture::new(1);
    let builder = || {
        Producer::new(STREAM)
            .with_deadline(Duration::from_millis(150))
            .with_backoff(Duration::from_millis(1)..=Duration::from_millis(5))
    };
    let throttled = stage.fault(Operation::PutRecords, FaultEffect::Throttle, 1.0);
    let producer = builder().with_kinesis(stage.api()).start().await.unwrap();
    let expired = producer.put("a", "1").await.unwrap().await;
    let Outcome::Rejected { why: RejectReason::Expired, attempts } = expired else {
        panic!("{expired:?}")
    };
    assert!(attempts.count() > 1);
    stage.engine.faults().remove(throttled);
    stage.fault(Operation::PutRecords, FaultEffect::DropReply, 1.0);
    let unknown = producer.put("b", "1").await.unwrap().await;
    assert!(matches!(unknown, Outcome::Unknown { .. }), "{unknown:?}");
    stage.engine.faults().clear();
    for key in ["a", "b"] {
        let stopped = producer.put(key, "2").await.unwrap().await;
        assert!(
            matches!(stopped, Outcome::Rejected { why: RejectReason::KeyStopped, .. }),
            "{stopped:?}"
        );
    }
}
