//! Tables: made as asked for, and left alone where they are somebody else's.

use crate::server::{Server, client};
use anabranch::lease::dynamodb::Billing;
use anabranch::lease::{DynamoDbStore, LeaseStore, StoreError};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType,
    ScalarAttributeType, TableDescription,
};

async fn make(client: &Client, table: &str, key: &[(&str, KeyType)]) {
    let mut create = client.create_table().table_name(table);
    for (name, role) in key {
        let attribute = AttributeDefinition::builder().attribute_name(*name);
        let attribute = attribute.attribute_type(ScalarAttributeType::S).build();
        let element = KeySchemaElement::builder().attribute_name(*name).key_type(role.clone());
        create = create.attribute_definitions(attribute.expect("an attribute"));
        create = create.key_schema(element.build().expect("a key"));
    }
    create.billing_mode(BillingMode::PayPerRequest).send().await.expect("a table");
}

async fn describe(client: &Client, table: &str) -> TableDescription {
    let reply = client.describe_table().table_name(table).send().await.expect("a reply");
    reply.table.expect("a table")
}

#[tokio::test]
async fn tables_are_made_with_kcls_key_and_the_billing_asked_for() {
    let server = Server::embedded().await;
    let (config, client) = (server.config(), client(&server.config()));
    let provisioned = Billing::Provisioned { read_units: 7, write_units: 9 };
    DynamoDbStore::kcl(&config, "on-demand").prepare().await.expect("a table");
    let store = DynamoDbStore::kcl(&config, "provisioned").with_billing(provisioned);
    store.with_tag("team", "x").prepare().await.expect("a table");

    let table = describe(&client, "on-demand").await;
    let mode = table.billing_mode_summary().and_then(|summary| summary.billing_mode());
    assert_eq!(mode, Some(&BillingMode::PayPerRequest));
    assert_eq!(table.key_schema().len(), 1);
    assert_eq!(table.key_schema()[0].attribute_name(), "leaseKey");
    assert_eq!(table.key_schema()[0].key_type(), &KeyType::Hash);
    assert_eq!(table.attribute_definitions().len(), 1);
    let table = describe(&client, "provisioned").await;
    let units = table.provisioned_throughput().expect("units");
    assert_eq!((units.read_capacity_units(), units.write_capacity_units()), (Some(7), Some(9)));
}

#[tokio::test]
async fn a_table_of_another_kind_is_refused_in_plain_words() {
    let server = Server::embedded().await;
    let (config, client) = (server.config(), client(&server.config()));
    make(&client, "kcl", &[("leaseKey", KeyType::Hash)]).await;
    make(&client, "other", &[("shard_id", KeyType::Hash)]).await;
    make(&client, "ours", &[("pk", KeyType::Hash), ("sk", KeyType::Range)]).await;
    for (store, said) in [
        (DynamoDbStore::native(&config, "kcl"), "use the KCL layout"),
        (DynamoDbStore::native(&config, "other"), "(shard_id)"),
        (DynamoDbStore::kcl(&config, "other"), "(shard_id)"),
        (DynamoDbStore::kcl(&config, "ours"), "native layout"),
    ] {
        let error = store.prepare().await.expect_err(said);
        assert!(matches!(error, StoreError::ForeignSchema { .. }), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[tokio::test]
async fn rows_of_a_newer_version_are_refused() {
    let server = Server::embedded().await;
    let store = DynamoDbStore::native(&server.config(), "leases");
    store.prepare().await.expect("a table");
    let put = client(&server.config()).put_item().table_name("leases");
    let put = put.item("pk", AttributeValue::S("app".into()));
    let put = put.item("sk", AttributeValue::S("format".into()));
    put.item("format", AttributeValue::N("2".into())).send().await.expect("a row");
    let error = store.prepare().await.expect_err("a newer format");
    assert!(error.to_string().contains("format 2"), "{error}");
}
