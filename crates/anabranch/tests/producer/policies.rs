//! Policies: effects of a failed record, of a bad entry, and of many stopped keys.

use crate::stage::{ProducerFixture, STREAM};
use anabranch::event::{Event, Events, ProducerEvent};
use anabranch::producer::{Aggregation, KeyOrder, OnFailure, Outcome, Producer, RejectReason};
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::Operation;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[tokio::test]
async fn without_order_a_shard_gets_many_containers_at_once_and_all_are_placed() {
    let stage = ProducerFixture::new(1);
    stage.fault(Operation::PutRecords, FaultEffect::FailEntries, 0.2);
    let most = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&most);
    let producer = Producer::new(STREAM)
        .with_order(KeyOrder::None)
        .with_aggregation(Aggregation::Off)
        .with_rate_percent(1_000)
        .with_backoff(Duration::from_millis(1)..=Duration::from_millis(5))
        .with_events(Events::new(move |event| {
            if let Event::Producer(ProducerEvent::RequestSent { kinesis_records, .. }) = event {
                seen.fetch_max(*kinesis_records, Ordering::Relaxed);
            }
        }))
        .with_kinesis(stage.api())
        .start()
        .await
        .unwrap();
    for number in 0..400 {
        drop(producer.put("one-key", format!("{number}")).await.unwrap());
    }
    let account = producer.close(Duration::from_secs(20)).await;
    assert_eq!((account.placed, account.is_complete()), (400, true));
    assert!(most.load(Ordering::Relaxed) > 1, "one record of the key at a time");
    let mut numbers = stage.first_deliveries().await.remove("one-key").unwrap();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..400).collect::<Vec<u64>>());
}

#[tokio::test]
async fn a_key_goes_on_behind_a_hole_where_that_is_the_policy() {
    let stage = ProducerFixture::new(1);
    let throttled = stage.fault(Operation::PutRecords, FaultEffect::Throttle, 1.0);
    let producer = Producer::new(STREAM)
        .with_on_failure(OnFailure::Continue)
        .with_deadline(Duration::from_millis(120))
        .with_backoff(Duration::from_millis(1)..=Duration::from_millis(5))
        .with_kinesis(stage.api())
        .start()
        .await
        .unwrap();
    let expired = producer.put("a", "1").await.unwrap().await;
    assert!(matches!(expired, Outcome::Rejected { why: RejectReason::Expired, .. }), "{expired:?}");
    stage.engine.faults().remove(throttled);
    assert!(producer.put("a", "2").await.unwrap().await.is_placed());
    assert_eq!(producer.stopped_keys().await, []);
    assert_eq!(stage.first_deliveries().await["a"], [2]);
}

#[tokio::test]
async fn a_record_that_the_stream_refuses_takes_no_other_with_it() {
    let stage = ProducerFixture::new(1);
    // The user allows two mebibytes, and the stream takes one.
    let producer = Producer::new(STREAM)
        .with_record_max_bytes(2 << 20)
        .with_aggregation(Aggregation::Off)
        .with_linger(Duration::from_millis(50))
        .with_kinesis(stage.api())
        .start()
        .await
        .unwrap();
    let mut small = Vec::new();
    for number in 0..5 {
        small.push(producer.put(format!("k{number}"), "1").await.unwrap());
    }
    let mut large = b"1 large ".to_vec();
    large.resize(3 << 19, b'x');
    let large = producer.put("large", large).await.unwrap();
    small.push(producer.put("behind", "1").await.unwrap());
    producer.flush().await;
    for ticket in small {
        assert!(ticket.await.is_placed());
    }
    let refused = large.await;
    assert!(
        matches!(&refused, Outcome::Rejected { why: RejectReason::Refused { .. }, attempts } if attempts.count() > 0),
        "{refused:?}"
    );
}

#[tokio::test]
async fn too_many_stopped_keys_stop_the_producer() {
    let stage = ProducerFixture::new(1);
    let producer = Producer::new(STREAM)
        .with_max_stopped_keys(2)
        .with_kinesis(stage.api())
        .start()
        .await
        .unwrap();
    assert!(producer.put("a", "1").await.unwrap().await.is_placed());
    stage.delete();
    for key in ["a", "b", "c"] {
        assert!(!producer.put(key, "2").await.unwrap().await.is_placed());
    }
    stage.create(1, None);
    let refused = producer.put("d", "1").await.unwrap().await;
    assert!(
        matches!(refused, Outcome::Rejected { why: RejectReason::ProducerStopped, .. }),
        "{refused:?}"
    );
    let account = producer.close(Duration::from_secs(5)).await;
    assert_eq!((account.placed, account.rejected + account.unknown), (1, 4));
}
