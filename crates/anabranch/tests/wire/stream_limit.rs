//! The server's limit of concurrent streams on a connection does not limit the library.

use crate::network::Transport;
use crate::world::{self, Fetching, STREAM};
use anabranch::producer::Producer;
use anabranch::stream::AwsKinesis;
use anabranch::stream::api::{PutEntry, StreamApi};
use anabranch_local::fault::{FaultEffect, FaultRule};
use anabranch_local::op::Operation;
use anabranch_model::ids::StreamName;
use std::time::Duration;
use tokio::task::JoinSet;

const LIMIT: u32 = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_shards_than_streams_are_all_delivered_by_fan_out() {
    let local = world::start(64, |builder| builder.with_max_concurrent_streams(LIMIT)).await;
    let config = Transport::Tls.config(&local);
    let producer =
        Producer::new(STREAM).with_kinesis(AwsKinesis::new(&config)).start().await.unwrap();
    // Enough keys for every shard to have some.
    world::put(&producer, 600, 0..1).await;
    let (seen, _running) = world::consume(&config, Fetching::FanOut);
    seen.until("all shards", Duration::from_secs(10), |seen| seen.keys() == 600).await;
    seen.check(600, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_puts_than_streams_are_all_in_flight() {
    const PUTS: u64 = 24;
    let local = world::start(1, |builder| builder.with_max_concurrent_streams(LIMIT)).await;
    local.engine().faults().add(FaultRule {
        operation: Some(Operation::PutRecord),
        stream: None,
        shard: None,
        probability: 1.0,
        skip: 0,
        count: None,
        effect: FaultEffect::Delay { ms: 1_500 },
    });
    let api = AwsKinesis::new(&Transport::Tls.config(&local));
    let mut puts = JoinSet::new();
    for number in 0..PUTS {
        let api = api.clone();
        puts.spawn(async move {
            let data = number.to_string().into();
            let entry = PutEntry { key: "k".into(), hash: None, data };
            api.put_record(&StreamName::from(STREAM), &entry, None).await
        });
    }
    let all_open = async {
        while local.tls_connections().unwrap().open < PUTS {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(10), all_open).await;
    assert!(in_time.is_ok(), "{:?}", local.tls_connections());
    while let Some(put) = puts.join_next().await {
        put.unwrap().unwrap();
    }
}
