//! Tables: created as requested, and left alone if they belong to another application.

use crate::server::{Server, client};
use anabranch::lease::stores::dynamodb::Billing;
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
async fn rows_of_a_later_format_are_used_where_it_says_so_and_refused_elsewhere() {
    let server = Server::embedded().await;
    let store = DynamoDbStore::native(&server.config(), "leases");
    store.prepare().await.expect("a table");
    let client = client(&server.config());
    let (app, sort) = (AttributeValue::S("app".into()), AttributeValue::S("format".into()));
    let row = client.get_item().table_name("leases").key("pk", app.clone()).key("sk", sort.clone());
    let made = row.send().await.expect("a read").item.expect("a row");
    assert_eq!(made.get("min_reader"), Some(&AttributeValue::N("1".into())), "{made:?}");
    for (format, min_reader, usable) in
        [(1, None, true), (2, None, false), (2, Some(1), true), (7, Some(2), false)]
    {
        let number = |number: u64| AttributeValue::N(number.to_string());
        let put = client.put_item().table_name("leases").item("pk", app.clone());
        let put = put.item("sk", sort.clone()).item("format", number(format));
        let put = min_reader.into_iter().fold(put, |put, it| put.item("min_reader", number(it)));
        put.send().await.expect("a row");
        let prepared = store.prepare().await.map_err(|error| error.to_string());
        assert_eq!(prepared.is_ok(), usable, "{format} {min_reader:?}: {prepared:?}");
        let words = prepared.err().unwrap_or_default();
        assert!(usable || words.contains(&format!("format {format}")), "{words}");
    }
}
