//! Connections are reused, and closed when they are idle.

use crate::network::Transport;
use crate::world::{self, STREAM};
use anabranch::http_client::HttpClient;
use anabranch::stream::AwsKinesis;
use anabranch::stream::api::{PutEntry, ShardFilter, StreamApi};
use anabranch_local::Local;
use anabranch_model::ids::StreamName;
use std::time::Duration;

#[tokio::test]
async fn calls_one_after_another_share_a_connection() {
    for wire in Transport::ALL {
        let local = world::start(1, |builder| builder).await;
        let api = AwsKinesis::new(&wire.config(&local));
        let stream = StreamName::from(STREAM);
        for _ in 0..20 {
            api.list_shards(&stream, ShardFilter::All).await.unwrap();
            let entry = PutEntry { key: "k".into(), hash: None, data: vec![1; 100_000].into() };
            api.put_record(&stream, &entry, None).await.unwrap();
        }
        let count = match wire {
            Transport::Http => local.connections(),
            Transport::Tls => local.tls_connections().unwrap(),
        };
        assert_eq!(count.accepted, 1, "{wire:?}");
    }
}

/// Returns a client of a local stream, and the HTTP client with its connections.
fn client(local: &Local) -> (AwsKinesis, HttpClient) {
    let client = HttpClient::with_trusted_pem(local.ca_pem().unwrap()).unwrap();
    let config = Transport::Tls.config(local).into_builder().http_client(client.clone()).build();
    (AwsKinesis::new(&config), client)
}

#[tokio::test]
async fn a_connection_without_a_call_is_closed_after_a_while() {
    let local = world::start(1, |builder| builder).await;
    let (api, client) = client(&local);
    api.list_shards(&StreamName::from(STREAM), ShardFilter::All).await.unwrap();
    assert_eq!(client.connections().open, 1);
    let closed = async {
        while client.connections().open > 0 || local.tls_connections().unwrap().open > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), closed).await.unwrap();
}

#[tokio::test]
async fn a_call_that_is_dropped_takes_its_connection_along() {
    let local = world::start(1, |builder| builder).await;
    let (api, client) = client(&local);
    let stream = StreamName::from(STREAM);
    api.list_shards(&stream, ShardFilter::All).await.unwrap();
    let delayed = anabranch_local::fault::FaultRule {
        operation: Some(anabranch_local::op::Operation::ListShards),
        stream: None,
        shard: None,
        probability: 1.0,
        skip: 0,
        count: Some(1),
        effect: anabranch_local::fault::FaultEffect::Delay { ms: 60_000 },
    };
    local.engine().faults().add(delayed);
    let call = api.list_shards(&stream, ShardFilter::All);
    assert!(tokio::time::timeout(Duration::from_millis(300), call).await.is_err());
    assert_eq!(client.connections().open, 0);
    api.list_shards(&stream, ShardFilter::All).await.unwrap();
    assert_eq!(client.connections().made, 2);
}
