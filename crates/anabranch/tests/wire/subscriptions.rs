//! Handlers that hang hold up their own shard, and no other.

use crate::network::Wire;
use crate::world::{self, Fetching, STREAM, Seen};
use anabranch::consumer::{Delivery, HandlerError};
use anabranch::lease::MemoryStore;
use anabranch::stream::AwsKinesis;
use anabranch::stream::api::{Entry, StreamApi};
use anabranch_model::hash::HashKey;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::Layout;
use bytes::Bytes;
use std::time::Duration;

const SHARDS: u32 = 4;
/// What waits in each shard whose handler hangs: more than a connection's usual window.
const WAITING: usize = 12;
const WAITING_BYTES: usize = 512 * 1024;
const ROUNDS: usize = 60;

/// An entry for a shard.
fn entry(shard: u32, data: Bytes) -> Entry {
    // Four shards share the range by the first two bits.
    let hash = u128::from(shard) << 126;
    let key = if shard == 3 { "goes-on" } else { "hangs" };
    Entry { key: key.into(), hash: Some(HashKey(hash)), data }
}

async fn check(fetching: Fetching) {
    let local = world::start(i64::from(SHARDS), |builder| builder).await;
    let config = Wire::Tls.config(&local);
    let (api, stream) = (AwsKinesis::new(&config), StreamName::from(STREAM));
    for shard in 0..3 {
        for _ in 0..WAITING {
            let waiting = entry(shard, vec![b'x'; WAITING_BYTES].into());
            api.put_record(&stream, &waiting, None).await.unwrap();
        }
    }
    let seen = Seen::default();
    let into = seen.clone();
    let leases = MemoryStore::new(Layout::Native);
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
    // Each record comes before the next is put, so a stall of the shard is a stall of the test.
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
