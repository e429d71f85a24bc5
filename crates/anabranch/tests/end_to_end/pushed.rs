//! Enhanced fan-out over HTTP, with the event stream of the AWS SDK.

use crate::network::{Network, Transport};
use anabranch::consumer::{Consumer, Delivery, HandlerError};
use anabranch::lease::MemoryStore;
use anabranch::stream::AwsKinesis;
use anabranch::stream::api::{PutEntry, StreamApi};
use anabranch_local::op::{StreamTarget, create_stream, split_shard};
use anabranch_local::{EngineOptions, Local};
use anabranch_model::ids::StreamName;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Reads the records of one key, through a split, by fan-out. `trouble` injects faults in between.
async fn check(wire: Transport, numbers: usize, trouble: impl Fn(usize, &Network)) {
    let local = wire.start(Local::builder().with_options(EngineOptions::instant())).await;
    let request = create_stream::Request {
        stream_name: Some("orders".to_owned()),
        shard_count: Some(1),
        ..Default::default()
    };
    local.engine().create_stream(&request).unwrap();
    let network = Network::before(wire.address(&local)).await;
    let through = wire.config_at(&local, network.address());
    let (seen, stop) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
    let (into, asked) = (Arc::clone(&seen), stop.clone());
    let consumer = Consumer::new("orders", "pushed")
        .with_kinesis(AwsKinesis::new(&through))
        .with_leases(MemoryStore::new())
        .with_fan_out()
        .each(move |record: Delivery| {
            let number: usize = std::str::from_utf8(&record.data).unwrap().parse().unwrap();
            into.lock().unwrap().push(number);
            std::future::ready(Ok::<(), HandlerError>(()))
        });
    let mut task = JoinSet::new();
    task.spawn(consumer.run_until(async move { asked.cancelled().await }));

    let (api, stream) = (AwsKinesis::new(&wire.config(&local)), StreamName::from("orders"));
    for number in 0..numbers {
        trouble(number, &network);
        if number == numbers / 2 {
            let request = split_shard::Request {
                stream: StreamTarget::named("orders"),
                shard_to_split: Some("shardId-000000000000".to_owned()),
                new_starting_hash_key: Some((1_u128 << 127).to_string()),
            };
            local.engine().split_shard(&request).unwrap();
        }
        let entry = PutEntry { key: "one".into(), hash: None, data: number.to_string().into() };
        api.put_record(&stream, &entry, None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..600 {
        if seen.lock().unwrap().len() >= numbers {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stop.cancel();
    task.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(*seen.lock().unwrap(), (0..numbers).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_pushed_over_http_through_a_split_in_order() {
    check(Transport::Http, 60, |_, _| ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_pushed_over_tls_and_http2_through_a_split_in_order() {
    check(Transport::Tls, 60, |_, _| ()).await;
}

/// For five seconds after its start a subscription blocks the next one, even if it has ended: the
/// service answers `ResourceInUseException` until then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_whose_connection_breaks_are_made_again_without_gap_or_repetition() {
    let cut = |number: usize, network: &Network| {
        if number % 70 == 40 {
            network.cut();
        }
    };
    tokio::join!(check(Transport::Http, 300, cut), check(Transport::Tls, 300, cut));
}
