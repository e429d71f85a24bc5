//! Hanging handlers delay their own shard, and no other.

use crate::network::Transport;
use crate::world::{self, Deliveries, Fetching, STREAM};
use anabranch::consumer::{Delivery, HandlerError};
use anabranch::lease::MemoryStore;
use anabranch::stream::AwsKinesis;
use anabranch::stream::api::{PutEntry, ReadFrom, ShardFilter, StreamApi};
use anabranch_model::hash::HashKey;
use anabranch_model::ids::StreamName;
use bytes::Bytes;
use std::time::Duration;

const SHARDS: u32 = 4;
/// Records that wait in each shard whose handler hangs: more than a connection's usual window.
const WAITING: usize = 20;
const WAITING_BYTES: usize = 512 * 1024;
const ROUNDS: usize = 60;

/// Returns an entry for a shard.
fn entry(shard: u32, data: Bytes) -> PutEntry {
    // Four shards share the range by the first two bits.
    let hash = u128::from(shard) << 126;
    let key = if shard == 3 { "goes-on" } else { "hangs" };
    PutEntry { key: key.into(), hash: Some(HashKey(hash)), data }
}

/// Puts more into three shards than their windows take.
async fn fill(api: &AwsKinesis, stream: &StreamName) {
    for shard in 0..3 {
        for _ in 0..WAITING {
            let waiting = entry(shard, vec![b'x'; WAITING_BYTES].into());
            api.put_record(stream, &waiting, None).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_that_are_not_read_hold_up_no_other() {
    let local = world::start(i64::from(SHARDS), |builder| builder).await;
    let config = Transport::Tls.config(&local);
    let (api, stream) = (AwsKinesis::new(&config), StreamName::from(STREAM));
    fill(&api, &stream).await;
    let summary = api.describe(&stream).await.unwrap();
    let consumer = api.register_consumer(&summary, "wire").await.unwrap();
    let shards = api.list_shards(&stream, ShardFilter::All).await.unwrap().shards;
    let mut subscriptions = Vec::new();
    for shard in &shards {
        let begun = api.subscribe(&consumer, &shard.id, ReadFrom::TrimHorizon).await;
        subscriptions.push(begun.unwrap());
    }
    let mut read = subscriptions.pop().unwrap();
    // The waiting records have arrived as far as they can.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for round in 0..10 {
        api.put_record(&stream, &entry(3, "next".into()), None).await.unwrap();
        let mut records = 0;
        let next = async {
            while records == 0 {
                let event = std::future::poll_fn(|context| read.as_mut().poll_next(context)).await;
                records = event.unwrap().unwrap().records.len();
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(8), next).await;
        assert!(in_time.is_ok(), "round {round}");
    }
}

async fn check(fetching: Fetching) {
    let local = world::start(i64::from(SHARDS), |builder| builder).await;
    let config = Transport::Tls.config(&local);
    let (api, stream) = (AwsKinesis::new(&config), StreamName::from(STREAM));
    fill(&api, &stream).await;
    let seen = Deliveries::default();
    let into = seen.clone();
    let leases = MemoryStore::new();
    let _running = world::run(&config, fetching, leases, move |record: Delivery| {
        into.add(&record);
        async move {
            if record.partition_key.as_str() == "hangs" {
                std::future::pending::<()>().await;
            }
            Ok::<(), HandlerError>(())
        }
    });
    seen.until("three handlers hang", Duration::from_secs(30), |seen| seen.count() >= 3).await;
    // The waiting records have arrived as far as they can.
    tokio::time::sleep(Duration::from_secs(2)).await;
    // Each record arrives before the next is put, so a stall of the shard is a stall of the test.
    for round in 0..ROUNDS {
        let next = entry(3, round.to_string().into());
        api.put_record(&stream, &next, None).await.unwrap();
        let what = format!("round {round}, {fetching:?}");
        seen.until(&what, Duration::from_secs(8), |seen| seen.count() == 3 + round + 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_keeps_its_rate_while_the_handlers_of_others_hang() {
    for fetching in Fetching::ALL {
        check(fetching).await;
    }
}
