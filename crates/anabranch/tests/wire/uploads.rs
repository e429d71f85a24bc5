//! Large records over slow connections, and slow replies.

use crate::network::{Network, Transport};
use crate::world;
use anabranch::producer::{Outcome, Producer};
use anabranch::stream::AwsKinesis;
use anabranch_local::fault::{FaultEffect, FaultRule};
use anabranch_local::op::Operation;
use std::time::Duration;

/// A record of 8 MiB over 500 KB/s takes 17 s, longer than the default timeout for a small one.
async fn large_record(wire: Transport) {
    const BYTES: usize = 8 * 1024 * 1024;
    let local = world::start(1, |builder| builder).await;
    world::create(&local, "large", 1, Some(10 * 1024));
    let network = Network::with_uplink(wire.address(&local), Some(500_000)).await;
    let config = wire.config_at(&local, network.address());
    let producer =
        Producer::new("large").with_kinesis(AwsKinesis::new(&config)).start().await.unwrap();
    let outcome = producer.put("k", vec![b'x'; BYTES]).await.unwrap().await;
    assert!(matches!(outcome, Outcome::Placed { .. }), "{wire:?}: {outcome:?}");
    let sent = network.sent();
    assert!(sent < 2 * BYTES as u64, "{wire:?}: it was sent once, and {sent} bytes were sent");
}

/// More concurrent requests than the connection carries within the default timeout of one.
async fn many_requests(wire: Transport) {
    const RECORDS: usize = 250;
    const BYTES: usize = 50_000;
    let local = world::start(64, |builder| builder).await;
    let network = Network::with_uplink(wire.address(&local), Some(500_000)).await;
    let config = wire.config_at(&local, network.address());
    let producer =
        Producer::new(world::STREAM).with_kinesis(AwsKinesis::new(&config)).start().await.unwrap();
    let mut tickets = Vec::new();
    for number in 0..RECORDS {
        tickets.push(producer.put(format!("key-{number}"), vec![b'x'; BYTES]).await.unwrap());
    }
    for ticket in tickets {
        let outcome = ticket.await;
        assert!(matches!(outcome, Outcome::Placed { .. }), "{wire:?}: {outcome:?}");
    }
    let sent = network.sent();
    let all = (RECORDS * BYTES) as u64;
    assert!(sent < all + all / 4, "{wire:?}: hardly anything is sent twice, and {sent} were sent");
}

/// A reply that takes longer than the default timeout, and less than the configured one.
async fn slow_reply(wire: Transport) {
    let local = world::start(1, |builder| builder).await;
    local.engine().faults().add(FaultRule {
        operation: Some(Operation::PutRecords),
        stream: None,
        shard: None,
        probability: 1.0,
        skip: 0,
        count: None,
        effect: FaultEffect::Delay { ms: 13_000 },
    });
    let producer = Producer::new(world::STREAM).with_request_timeout(Duration::from_mins(1));
    let producer =
        producer.with_kinesis(AwsKinesis::new(&wire.config(&local))).start().await.unwrap();
    let outcome = producer.put("k", "data").await.unwrap().await;
    assert!(matches!(outcome, Outcome::Placed { .. }), "{wire:?}: {outcome:?}");
    let rules = local.engine().faults().list();
    assert_eq!(rules[0].struck, 1, "{wire:?}: it was sent once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_outs_leave_time_for_the_upload_and_mean_what_they_say() {
    tokio::join!(
        large_record(Transport::Tls),
        large_record(Transport::Http),
        many_requests(Transport::Tls),
        many_requests(Transport::Http),
        slow_reply(Transport::Tls),
        slow_reply(Transport::Http)
    );
}
