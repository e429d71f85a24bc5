//! Connections that go silent without notice to either end are abandoned within 15 s.

use crate::network::{Network, Transport};
use crate::world::{self, Fetching, STREAM};
use anabranch::lease::DynamoDbStore;
use anabranch::producer::Producer;
use anabranch::stream::AwsKinesis;
use std::time::Duration;

const KEYS: usize = 40;
const LIMIT: Duration = Duration::from_secs(15);

/// Puts, gets, lease calls and subscriptions over connections that all go silent at once.
async fn check(fetching: Fetching) {
    let local = world::start(4, |builder| builder).await;
    let network = Network::before(local.tls_address().unwrap()).await;
    let config = Transport::Tls.config_at(&local, network.address());
    let leases = DynamoDbStore::native(&config, "leases");
    let (seen, _running) = world::consume_with(&config, fetching, leases);
    let producer =
        Producer::new(STREAM).with_kinesis(AwsKinesis::new(&config)).start().await.unwrap();
    world::put(&producer, KEYS, 0..10).await;
    seen.until("before", Duration::from_secs(30), |seen| seen.count() >= KEYS * 10).await;
    for round in 1..=2 {
        network.silence();
        let numbers = round * 10..(round + 1) * 10;
        // One clock for both: the puts continue, and their records arrive, within the limit.
        let what = format!("{fetching:?}, round {round}: records");
        let all = KEYS * (round + 1) * 10;
        let puts = tokio::time::timeout(LIMIT, world::put(&producer, KEYS, numbers));
        let (in_time, ()) =
            tokio::join!(puts, seen.until(&what, LIMIT, |seen| seen.count() >= all));
        assert!(in_time.is_ok(), "{fetching:?}, round {round}: puts did not go on");
    }
    let again = seen.check(KEYS, 30);
    // Calls on the silent connections were never applied, and leases are kept meanwhile. A round is
    // ten records for each key.
    assert!(again <= KEYS, "{fetching:?}: {again} records came again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_goes_on_over_new_connections_when_the_old_ones_go_silent() {
    tokio::join!(check(Fetching::Polling), check(Fetching::FanOut));
}
