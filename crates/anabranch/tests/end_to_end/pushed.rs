//! Enhanced fan-out over HTTP, with the event stream of the AWS SDK.

use anabranch::consumer::{Consumer, Delivery, HandlerError};
use anabranch::lease::MemoryStore;
use anabranch::stream::AwsKinesis;
use anabranch::stream::api::{Entry, StreamApi};
use anabranch_local::op::{StreamTarget, create_stream, split_shard};
use anabranch_local::{Local, Options};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::Layout;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_pushed_over_http_through_a_split_in_order() {
    let local = Local::builder().with_options(Options::instant()).start().await.unwrap();
    let request = create_stream::Request {
        stream_name: Some("orders".to_owned()),
        shard_count: Some(1),
        ..Default::default()
    };
    local.engine().create_stream(&request).unwrap();
    let (seen, stop) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
    let (into, asked) = (Arc::clone(&seen), stop.clone());
    let consumer = Consumer::new("orders", "pushed")
        .with_kinesis(AwsKinesis::new(&local.sdk_config()))
        .with_leases(MemoryStore::new(Layout::Native))
        .with_fan_out()
        .each(move |record: Delivery| {
            let number: usize = std::str::from_utf8(&record.data).unwrap().parse().unwrap();
            into.lock().unwrap().push(number);
            std::future::ready(Ok::<(), HandlerError>(()))
        });
    let mut task = JoinSet::new();
    task.spawn(consumer.run_until(async move { asked.cancelled().await }));

    let (api, stream) = (AwsKinesis::new(&local.sdk_config()), StreamName::from("orders"));
    for number in 0..60_usize {
        if number == 30 {
            let request = split_shard::Request {
                stream: StreamTarget::named("orders"),
                shard_to_split: Some("shardId-000000000000".to_owned()),
                new_starting_hash_key: Some((1_u128 << 127).to_string()),
            };
            local.engine().split_shard(&request).unwrap();
        }
        let entry = Entry { key: "one".into(), hash: None, data: number.to_string().into() };
        api.put_record(&stream, &entry, None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..300 {
        if seen.lock().unwrap().len() >= 60 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stop.cancel();
    task.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(*seen.lock().unwrap(), (0..60).collect::<Vec<_>>());
}
