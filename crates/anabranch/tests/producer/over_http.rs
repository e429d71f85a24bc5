//! The producer with the AWS SDK, over plain HTTP and over TLS with HTTP/2, in both formats:
//! reshards and faults while it puts.

use crate::network::Transport;
use crate::stage::{self, ProducerFixture, STREAM};
use anabranch::producer::{Aggregation, Outcome, Producer};
use anabranch::stream::{AwsKinesis, WireFormat};
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::Operation;
use anabranch_local::{EngineOptions, Local};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const KEYS: u64 = 30;
const PUTS: u64 = 3_000;

/// Puts over HTTP while the stream is split and merged and calls fail. Every ticket resolves as
/// placed, each record is where its ticket says, and keys are in order.
async fn check(
    wire: Transport,
    format: WireFormat,
    aggregation: Aggregation,
    faults: &[(FaultEffect, f64)],
) {
    let name = format!("{wire:?}, {format:?}, {aggregation:?}");
    let local = wire.start(Local::builder().with_options(EngineOptions::instant())).await;
    let stage = ProducerFixture { engine: Arc::clone(local.engine()) };
    stage.create(2, None);
    for (effect, probability) in faults {
        stage.fault(Operation::PutRecords, *effect, *probability);
    }
    stage.fault(Operation::ListShards, FaultEffect::InternalError, 0.2);
    let api = AwsKinesis::speaking(format, &wire.config(&local));
    let producer = Producer::new(STREAM)
        .with_aggregation(aggregation)
        .with_linger(Duration::from_millis(2))
        .with_backoff(Duration::from_millis(2)..=Duration::from_millis(40))
        .with_rate_percent(1_000)
        .with_kinesis(api.clone())
        .start()
        .await
        .unwrap();
    let putting = async {
        let mut tickets = Vec::new();
        for number in 0..PUTS {
            let key = format!("key-{}", number % KEYS);
            tickets.push((number, producer.put(key, format!("{number} over HTTP")).await.unwrap()));
            if number % 50 == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        tickets
    };
    let resharding = async {
        for round in 0..5 {
            tokio::time::sleep(Duration::from_millis(40)).await;
            if round % 3 == 2 { stage.merge().await } else { stage.split().await }
        }
    };
    let (tickets, ()) = tokio::join!(putting, resharding);
    producer.flush().await;
    let mut places = BTreeMap::new();
    for (number, ticket) in tickets {
        match ticket.await {
            Outcome::Placed { sequence, sub, .. } => places.insert((sequence, sub), number),
            other => panic!("{name}: {number} is {other:?}"),
        };
    }
    let account = producer.close(Duration::from_secs(10)).await;
    assert_eq!((account.placed, account.is_complete()), (PUTS, true), "{name}");
    assert_eq!(api.format(), format, "{name}: no fault looks like another format");
    let found = stage.read_all().await.into_iter().filter(|record| {
        let place = places.get(&(record.sequence, record.sub));
        place.is_some_and(|number| *number == stage::number(&record.data))
    });
    assert_eq!(found.count() as u64, PUTS, "{name}: a placed record is not where its ticket says");
    for (key, numbers) in stage.first_deliveries().await {
        assert!(numbers.is_sorted(), "{name}: {key} came as {numbers:?}");
        assert_eq!(numbers.len() as u64, PUTS / KEYS, "{name}: {key}");
    }
}

const ROUGH: [(FaultEffect, f64); 4] = [
    (FaultEffect::DropReply, 0.05),
    (FaultEffect::Throttle, 0.05),
    (FaultEffect::ThrottleEntries, 0.2),
    (FaultEffect::FailEntries, 0.1),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reshards_lost_replies_and_throttles_over_http_in_cbor() {
    check(Transport::Http, WireFormat::Cbor, Aggregation::ByShard, &ROUGH).await;
    check(Transport::Http, WireFormat::Cbor, Aggregation::Off, &ROUGH).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reshards_lost_replies_and_throttles_over_tls_and_http2() {
    check(Transport::Tls, WireFormat::Cbor, Aggregation::ByShard, &ROUGH).await;
    check(Transport::Tls, WireFormat::Json, Aggregation::Off, &ROUGH).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reshards_lost_replies_and_throttles_over_http_in_json() {
    check(Transport::Http, WireFormat::Json, Aggregation::ByShard, &ROUGH).await;
}
