//! Order: the first deliveries of a key are in put order, whatever fails in between.

use crate::stage::{ProducerFixture, STREAM};
use anabranch::producer::{Aggregation, Outcome, Producer, ProducerBuilder};
use anabranch_local::EngineOptions;
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::Operation;
use anabranch_model::record::UserRecord;
use std::collections::BTreeMap;
use std::time::Duration;

const KEYS: u64 = 40;

fn quick() -> ProducerBuilder {
    Producer::new(STREAM)
        .with_linger(Duration::from_millis(2))
        .with_aggregate_bytes(64..=2_000)
        .with_backoff(Duration::from_millis(1)..=Duration::from_millis(20))
}

/// Puts numbered records of many keys while `trouble` runs. Checks that each is placed where its
/// ticket says, and delivered in order.
async fn check<F: Future<Output = ()>>(
    name: &str,
    stage: &ProducerFixture,
    builder: ProducerBuilder,
    puts: u64,
    trouble: F,
) {
    let producer = builder.with_kinesis(stage.api()).start().await.unwrap();
    let putting = async {
        let mut tickets = Vec::new();
        for number in 0..puts {
            let key = format!("key-{}", number % KEYS);
            tickets.push((number, producer.put(key, format!("{number} of many")).await.unwrap()));
            if number % 64 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        tickets
    };
    let (tickets, ()) = tokio::join!(putting, trouble);
    producer.flush().await;
    let mut places = BTreeMap::new();
    for (number, ticket) in tickets {
        match ticket.await {
            Outcome::Placed { sequence, sub, attempts, .. } => {
                assert!(attempts.count() > 0, "{name}: {number} has no attempt");
                places.insert((sequence, sub), number);
            }
            other => panic!("{name}: {number} is {other:?}"),
        }
    }
    assert_eq!(places.len() as u64, puts, "{name}: two records have one place");
    let account = producer.close(Duration::from_secs(5)).await;
    assert_eq!((account.placed, account.is_complete()), (puts, true), "{name}");
    let delivered: Vec<UserRecord> = stage.read_all().await;
    let mut found = 0;
    for record in &delivered {
        if let Some(number) = places.get(&(record.sequence, record.sub)) {
            assert_eq!(crate::stage::number(&record.data), *number, "{name}");
            found += 1;
        }
    }
    assert_eq!(found, puts, "{name}: a placed record is not where its ticket says");
    for (key, numbers) in stage.first_deliveries().await {
        assert!(numbers.is_sorted(), "{name}: {key} came as {numbers:?}");
        assert_eq!(numbers.len() as u64, puts / KEYS, "{name}: {key}");
    }
}

/// Splits and merges while records flow.
async fn reshard(stage: &ProducerFixture) {
    for round in 0..6 {
        tokio::time::sleep(Duration::from_millis(15)).await;
        if round % 3 == 2 { stage.merge().await } else { stage.split().await }
    }
}

#[tokio::test]
async fn keys_stay_in_order_through_splits_and_merges() {
    for aggregation in [Aggregation::ByShard, Aggregation::ByKey, Aggregation::Off] {
        let stage = ProducerFixture::new(2);
        let builder = quick().with_aggregation(aggregation);
        check(&format!("{aggregation:?}"), &stage, builder, 8_000, reshard(&stage)).await;
    }
}

#[tokio::test]
async fn keys_stay_in_order_while_a_third_of_the_entries_fail() {
    for aggregation in [Aggregation::ByShard, Aggregation::ByKey, Aggregation::Off] {
        let stage = ProducerFixture::new(3);
        stage.fault(Operation::PutRecords, FaultEffect::ThrottleEntries, 0.2);
        stage.fault(Operation::PutRecords, FaultEffect::FailEntries, 0.1);
        let builder = quick().with_aggregation(aggregation).with_rate_percent(1_000);
        check(&format!("{aggregation:?}"), &stage, builder, 4_000, reshard(&stage)).await;
    }
}

#[tokio::test]
async fn keys_stay_in_order_when_replies_are_lost_and_lists_fail() {
    let stage = ProducerFixture::new(2);
    stage.fault(Operation::PutRecords, FaultEffect::DropReply, 0.2);
    stage.fault(Operation::PutRecords, FaultEffect::InternalError, 0.1);
    stage.fault(Operation::ListShards, FaultEffect::InternalError, 0.5);
    let builder = quick().with_verify_timeout(Duration::from_millis(50));
    check("lost replies", &stage, builder, 4_000, reshard(&stage)).await;
}

#[tokio::test]
async fn keys_stay_in_order_without_any_list() {
    let stage = ProducerFixture::new(2);
    stage.fault(Operation::ListShards, FaultEffect::InternalError, 1.0);
    let trouble = tokio::time::sleep(Duration::from_millis(1));
    check("no list", &stage, quick(), 4_000, trouble).await;
}

#[tokio::test]
async fn ordering_numbers_go_with_each_put() {
    let stage = ProducerFixture::new(2);
    let builder = quick().with_ordering_numbers(true);
    check("numbers", &stage, builder, 2_000, reshard(&stage)).await;
}

#[tokio::test]
async fn a_shard_at_its_limit_is_used_and_never_overrun_for_long() {
    let stage = ProducerFixture::with(
        1,
        EngineOptions { enforce_limits: true, ..EngineOptions::instant() },
    );
    let builder = Producer::new(STREAM).with_linger(Duration::from_millis(2));
    let trouble = std::future::ready(());
    check("at the limit", &stage, builder, 12_000, trouble).await;
}

#[tokio::test]
async fn records_of_the_largest_size_pass_alone_and_behind_small_ones() {
    let stage = ProducerFixture::new(1);
    stage.delete();
    stage.create(1, Some(10 * 1024));
    let producer = Producer::new(STREAM).with_kinesis(stage.api()).start().await.unwrap();
    let mut tickets = vec![producer.put("k", "0 small").await.unwrap()];
    // With the key's byte, the last has exactly the maximum.
    let sizes = [(1, (1 << 20) - 1), (2, 1 << 20), (3, (10 << 20) - 2), (4, (10 << 20) - 1)];
    for (number, bytes) in sizes {
        let mut data = format!("{number} large ").into_bytes();
        data.resize(bytes, b'x');
        tickets.push(producer.put("k", data).await.unwrap());
    }
    producer.flush().await;
    for ticket in tickets {
        assert!(ticket.await.is_placed());
    }
    assert_eq!(stage.first_deliveries().await["k"], [0, 1, 2, 3, 4]);
}
