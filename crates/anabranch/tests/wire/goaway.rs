//! A server that sends GOAWAY on every connection after twenty requests.

use crate::network::Transport;
use crate::world::{self, Fetching, STREAM};
use anabranch::producer::{Aggregation, Producer};
use anabranch::stream::AwsKinesis;
use std::time::Duration;

const KEYS: usize = 50;
const NUMBERS: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_end_after_twenty_requests_lose_nothing_and_keep_order() {
    for fetching in Fetching::ALL {
        let local = world::start(4, |builder| builder.with_goaway_after(20)).await;
        let config = Transport::Tls.config(&local);
        let (seen, _running) = world::consume(&config, fetching);
        // Without aggregation there are many requests.
        let producer = Producer::new(STREAM).with_aggregation(Aggregation::Off);
        let producer = producer.with_kinesis(AwsKinesis::new(&config)).start().await.unwrap();
        world::put(&producer, KEYS, 0..NUMBERS).await;
        let all = KEYS * NUMBERS;
        seen.until("all", Duration::from_mins(1), |seen| seen.count() >= all).await;
        assert_eq!(seen.check(KEYS, NUMBERS), 0, "nothing is put or delivered twice");
        let made = local.tls_connections().unwrap().accepted;
        assert!(made > 5, "the server ended connections: {made} were made");
    }
}
