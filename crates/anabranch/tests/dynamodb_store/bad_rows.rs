//! One unreadable row blocks nothing but its shard.

use crate::bad_row::{self, BAD};
use crate::server::{Server, client};
use anabranch::lease::{DynamoDbStore, LeaseStore};
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{Nonce, StreamChange, WorkerChange, Write};
use aws_sdk_dynamodb::types::AttributeValue;

fn s(text: &str) -> AttributeValue {
    AttributeValue::S(text.into())
}

/// Sets an attribute of the native layout's row with this key.
async fn set(server: &Server, key: [&str; 2], name: &str, value: AttributeValue) {
    let update = client(&server.config()).update_item().table_name("leases");
    let update = update.key("pk", s(key[0])).key("sk", s(key[1]));
    let update = update.update_expression("SET #n = :v").expression_attribute_names("#n", name);
    update.expression_attribute_values(":v", value).send().await.expect("an update");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fleet_in_the_native_layout_goes_on_beside_a_row_that_makes_no_sense() {
    let server = Server::embedded().await;
    let store = DynamoDbStore::native(&server.config(), "leases");
    let shard = format!("shardId-{BAD:012}");
    let spoil = async || set(&server, ["leases/orders", &shard], "checkpoint", s("soon")).await;
    Box::pin(bad_row::check([store.clone(), store], spoil)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fleet_in_kcls_layout_goes_on_beside_a_row_that_makes_no_sense() {
    let server = Server::embedded().await;
    let store = DynamoDbStore::kcl(&server.config(), "leases");
    let shard = format!("shardId-{BAD:012}");
    let spoil = async || {
        let update = client(&server.config()).update_item().table_name("leases");
        let update = update.key("leaseKey", s(&shard)).update_expression("SET #n = :v");
        let update = update.expression_attribute_names("#n", "checkpoint");
        update
            .expression_attribute_values(":v", s("AT_TIMESTAMP"))
            .send()
            .await
            .expect("an update");
    };
    Box::pin(bad_row::check([store.clone(), store], spoil)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_row_makes_no_sense_is_named_beside_the_others() {
    let server = Server::embedded().await;
    let store = DynamoDbStore::native(&server.config(), "leases");
    store.prepare().await.expect("a table");
    for name in ["a", "b"] {
        let (host, reads, lease_time_ms) = ("h".into(), None, None);
        let join = WorkerChange::Join { host, started_ms: 1, reads, lease_time_ms };
        let join = Write::worker(&name.into(), join, Nonce(1));
        assert!(store.write(&join).await.expect("an outcome").is_done());
    }
    set(&server, ["app", "worker/a"], "state", s("asleep")).await;
    bad_row::check_worker(&store, ["a", "b"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_which_the_facts_make_no_sense_is_named_beside_the_others() {
    let server = Server::embedded().await;
    let store = DynamoDbStore::native(&server.config(), "leases");
    store.prepare().await.expect("a table");
    for name in ["a", "b"] {
        let note = StreamChange::NoteStart { t0_ms: 5, created_ms: 4 };
        let note = Write::stream(&name.into(), note);
        assert!(store.write(&note).await.expect("an outcome").is_done());
    }
    set(&server, ["app", "stream/a"], "t0_ms", s("soon")).await;
    let [bad, good] = ["a", "b"].map(StreamName::from);
    let application = store.application().await.expect("an application beside the bad row");
    assert_eq!(application.streams.keys().collect::<Vec<_>>(), [&good]);
    let unreadable: Vec<_> = application.unreadable.iter().map(|row| &row.key).collect();
    assert_eq!(unreadable, [&bad]);
    assert!(application.knows(&bad) && application.facts(&bad).is_err());
    assert!(application.facts(&good).expect("it is good").is_some());
}
