//! Detection of a fleet of KCL 3.x, from its lease table and the one beside it.

use crate::server::{Server, client};
use crate::wire::{FaultyProxy, RequestFault};
use anabranch::lease::{AnyStore, DynamoDbStore, LeaseStore};
use anabranch_model::lease::kcl_probe::{ProbeRefusal, ProbeVerdict, evaluate};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType,
    ScalarAttributeType,
};

const LEASE_MS: u64 = 10_000;

fn s(text: &str) -> AttributeValue {
    AttributeValue::S(text.into())
}

async fn put(client: &Client, table: &str, row: &[(&str, AttributeValue)]) {
    let mut put = client.put_item().table_name(table);
    for (name, value) in row {
        put = put.item(*name, value.clone());
    }
    put.send().await.expect("a row");
}

async fn put_lease(client: &Client, counter: u32) {
    let row = [
        ("leaseKey", s("shardId-000000000000")),
        ("leaseOwner", s("java")),
        ("leaseCounter", AttributeValue::N(counter.to_string())),
        ("ownerSwitchesSinceCheckpoint", AttributeValue::N("0".into())),
        ("checkpoint", s("TRIM_HORIZON")),
    ];
    put(client, "app", &row).await;
}

/// Writes the leader's lock and the version, under the key attribute of their table.
async fn put_kcl_3(client: &Client, table: &str, key: &str, heartbeat: &str) {
    let lock = [
        (key, s("Leader")),
        ("entityType", s("LEADER")),
        ("ownerName", s("java")),
        ("leaseDuration", s("120000")),
        ("recordVersionNumber", s(heartbeat)),
    ];
    put(client, table, &lock).await;
    let kind = ("entityType", s("CLIENT_VERSION_MIGRATION"));
    put(client, table, &[(key, s("Migration3.0")), ("cv", s("CLIENT_VERSION_3X")), kind]).await;
}

async fn make_coordinator_table(client: &Client) {
    let key = AttributeDefinition::builder().attribute_name("key");
    let key = key.attribute_type(ScalarAttributeType::S).build().expect("a key");
    let hash = KeySchemaElement::builder().attribute_name("key").key_type(KeyType::Hash);
    let create = client.create_table().table_name("app-CoordinatorState");
    let create = create.attribute_definitions(key).key_schema(hash.build().expect("a schema"));
    create.billing_mode(BillingMode::PayPerRequest).send().await.expect("a table");
}

#[tokio::test]
async fn a_fleet_of_kcl_3_is_seen_wherever_it_keeps_its_lock() {
    for single_table in [true, false] {
        let server = Server::embedded().await;
        let client = client(&server.config());
        let store = AnyStore::from(DynamoDbStore::kcl(&server.config(), "app"));
        store.prepare().await.expect("a table");
        put_lease(&client, 4).await;
        let before = store.probe().await.expect("a survey");
        assert_eq!(
            evaluate(&before, &before, 0, LEASE_MS),
            ProbeVerdict::Clear,
            "KCL 2.x is joined"
        );
        assert_eq!(before.kinds.get("LEASE"), Some(&1));

        let (table, key) =
            if single_table { ("app", "leaseKey") } else { ("app-CoordinatorState", "key") };
        if !single_table {
            make_coordinator_table(&client).await;
        }
        put_kcl_3(&client, table, key, "first").await;
        let first = store.probe().await.expect("a survey");
        assert_eq!(evaluate(&first, &first, 0, LEASE_MS), ProbeVerdict::Wait { ms: 120_000 });
        assert_eq!(evaluate(&first, &first, 120_000, LEASE_MS), ProbeVerdict::Clear);

        put_kcl_3(&client, table, key, "second").await;
        let beaten = store.probe().await.expect("a survey");
        let verdict = evaluate(&first, &beaten, 30_000, LEASE_MS);
        assert!(
            matches!(verdict, ProbeVerdict::Refuse(ProbeRefusal::Kcl3AtWork { .. })),
            "{verdict:?}"
        );
        put_lease(&client, 5).await;
        let renewed = store.probe().await.expect("a survey");
        let verdict = evaluate(&beaten, &renewed, 3_000, LEASE_MS);
        assert!(
            matches!(verdict, ProbeVerdict::Refuse(ProbeRefusal::Kcl3AtWork { .. })),
            "{verdict:?}"
        );
    }
}

#[tokio::test]
async fn the_owners_of_every_stream_are_seen() {
    let server = Server::embedded().await;
    let client = client(&server.config());
    let store = DynamoDbStore::kcl_multi_stream(&server.config(), "app", |_| None);
    store.prepare().await.expect("a table");
    for (stream, owner) in [("1:a:5", "java-1"), ("1:b:6", "java-2"), ("1:c:7", "")] {
        let shard = "shardId-000000000000";
        let mut row = vec![
            ("leaseKey", s(&format!("{stream}:{shard}"))),
            ("streamName", s(stream)),
            ("shardId", s(shard)),
            ("leaseCounter", AttributeValue::N("1".into())),
            ("ownerSwitchesSinceCheckpoint", AttributeValue::N("0".into())),
            ("checkpoint", s("TRIM_HORIZON")),
        ];
        if !owner.is_empty() {
            row.push(("leaseOwner", s(owner)));
        }
        put(&client, "app", &row).await;
    }
    let survey = store.probe().await.expect("a survey");
    let owners: Vec<String> = survey.owners.clone().expect("owners").into_iter().collect();
    assert_eq!(owners, ["java-1", "java-2"]);
    assert_eq!(survey.others_than(&["b".into()]), ["1:a:5", "1:c:7"]);
}

#[tokio::test]
async fn rows_of_the_other_mode_are_refused() {
    let server = Server::embedded().await;
    let client = client(&server.config());
    let single = DynamoDbStore::kcl(&server.config(), "app");
    single.prepare().await.expect("a table");
    put_lease(&client, 1).await;
    let multi = DynamoDbStore::kcl_multi_stream(&server.config(), "app", |_| None);
    let survey = multi.probe().await.expect("a survey");
    let verdict = evaluate(&survey, &survey, 0, LEASE_MS);
    assert_eq!(verdict, ProbeVerdict::Refuse(ProbeRefusal::OtherMode { rows: 1 }));
}

#[tokio::test]
async fn who_may_not_read_the_table_beside_it_can_still_join_kcl_2() {
    let server = Server::embedded().await;
    let wire = FaultyProxy::to(server.address()).await;
    let store = DynamoDbStore::kcl(&wire.config(), "app");
    store.prepare().await.expect("a table");
    wire.next("Scan", RequestFault::Pass);
    wire.next("DescribeTable", RequestFault::error(400, "AccessDeniedException", "no"));
    let survey = store.probe().await.expect("a survey");
    assert!(survey.coordinator_denied.is_some());
    assert_eq!(evaluate(&survey, &survey, 0, LEASE_MS), ProbeVerdict::Clear);
}
