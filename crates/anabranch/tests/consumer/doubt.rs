//! Shard streams whose lease is lost, or may be.

use crate::outage::{self, CutOff, CutOffStore};
use crate::streams::numbers;
use crate::world::{ConsumerFixture, pause};
use anabranch::lease::LeaseStore as _;
use anabranch_model::lease::{LeaseChange, Nonce, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[tokio::test(start_paused = true)]
async fn a_stream_of_a_lost_lease_ends_with_records_still_in_it() {
    let world = ConsumerFixture::new(1);
    world.put_round(20);
    let mut shards = world.consumer(1).shard_streams(100);
    let mut shard = shards.next().await.unwrap();
    let first = shard.next().await.unwrap();
    let hold = world.rows()[0].token().unwrap();
    let change = LeaseChange::Take { taker: "thief-1".into(), term: hold.term };
    let write = Write::lease(&hold.key, change, Nonce(7));
    assert!(world.leases.write(&write).await.unwrap().is_done());
    first.ack();
    // The next checkpoint detects the loss.
    pause(5_000).await;
    assert!(shard.next().await.is_none(), "nineteen records wait, and none may be delivered");
    drop(shards);
}

#[tokio::test(start_paused = true)]
async fn a_stream_gives_nothing_while_it_is_in_doubt_whose_the_shard_is() {
    let world = ConsumerFixture::new(1);
    world.put_round(20);
    let off = Arc::new(AtomicBool::new(false));
    let store =
        CutOffStore { store: world.leases.clone(), off: Arc::clone(&off), what: CutOff::All };
    let mut shards = outage::consumer(&world, store).shard_streams(100);
    let mut shard = shards.next().await.unwrap();
    shard.next().await.unwrap().ack();
    // The others have arrived, and wait in the stream.
    pause(3_000).await;
    outage::beat(&world).await;
    off.store(true, Ordering::Relaxed);
    shard.next().await.unwrap().ack();
    // No owner delivers in the last fifth of the lease time of ten seconds.
    pause(8_200).await;
    tokio::select! {
        biased;
        record = shard.next() => panic!("{record:?} is given in the last fifth"),
        () = pause(1_000) => {}
    }
    off.store(false, Ordering::Relaxed);
    let soon = std::time::Duration::from_secs(30);
    let next = tokio::time::timeout(soon, shard.next()).await.expect("it is decided");
    if let Some(record) = next {
        record.ack();
        assert_eq!(numbers(&mut shard).await.len(), 17, "they go on where they stopped");
    }
    drop(shards);
}

#[tokio::test(start_paused = true)]
async fn a_stream_gives_nothing_after_the_lease_time_is_over() {
    let world = ConsumerFixture::new(1);
    world.put_round(20);
    let off = Arc::new(AtomicBool::new(false));
    let store =
        CutOffStore { store: world.leases.clone(), off: Arc::clone(&off), what: CutOff::All };
    let mut shards = outage::consumer(&world, store).shard_streams(100);
    let mut shard = shards.next().await.unwrap();
    shard.next().await.unwrap().ack();
    pause(3_000).await;
    outage::beat(&world).await;
    off.store(true, Ordering::Relaxed);
    // No record is requested meanwhile, so that only the last poll can detect it.
    tokio::time::advance(std::time::Duration::from_secs(11)).await;
    tokio::select! {
        biased;
        record = shard.next() => assert!(record.is_none(), "{record:?} is another worker's"),
        () = pause(1_000) => {}
    }
    drop(shards);
}
