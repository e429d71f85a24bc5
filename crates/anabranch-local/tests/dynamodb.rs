//! DynamoDB on the same port, through the AWS SDK for Rust: the operations of a lease table.

mod world;

use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType,
    ScalarAttributeType,
};
use std::sync::Arc;
use world::ServerFixture;

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

async fn lease_table(client: &aws_sdk_dynamodb::Client) {
    let key = AttributeDefinition::builder().attribute_name("leaseKey");
    let key = key.attribute_type(ScalarAttributeType::S).build().expect("a key");
    let hash = KeySchemaElement::builder().attribute_name("leaseKey").key_type(KeyType::Hash);
    client
        .create_table()
        .table_name("leases")
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(key)
        .key_schema(hash.build().expect("a schema"))
        .send()
        .await
        .expect("a table");
    let row = client.put_item().table_name("leases").item("leaseKey", text("shard"));
    row.item("owner", text("nobody")).send().await.expect("a row");
}

#[tokio::test]
async fn one_of_many_racers_wins_a_conditional_update() {
    let world = ServerFixture::start().await;
    let client = Arc::new(aws_sdk_dynamodb::Client::new(&world.local.sdk_config()));
    lease_table(&client).await;
    let mut racers = tokio::task::JoinSet::new();
    for racer in 0..8 {
        let client = Arc::clone(&client);
        racers.spawn(async move {
            let take = client.update_item().table_name("leases").key("leaseKey", text("shard"));
            let take = take.update_expression("SET #o = :me").condition_expression("#o = :nobody");
            let take = take.expression_attribute_names("#o", "owner");
            let take = take.expression_attribute_values(":me", text(&racer.to_string()));
            match take.expression_attribute_values(":nobody", text("nobody")).send().await {
                Ok(_) => true,
                Err(error) => {
                    let error = error.into_service_error();
                    assert!(error.is_conditional_check_failed_exception(), "{error:?}");
                    false
                }
            }
        });
    }
    let outcomes = racers.join_all().await;
    assert_eq!(outcomes.into_iter().filter(|won| *won).count(), 1);

    let missing = client.scan().table_name("absent").send().await.expect_err("no such table");
    assert!(missing.into_service_error().is_resource_not_found_exception());
    world.local.stop().await;
}

#[tokio::test]
async fn tables_in_a_file_outlive_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tables.sqlite");
    for start in 0..2 {
        let local = anabranch_local::Local::builder().with_tables_file(file.clone());
        let local = local.start().await.expect("a server");
        let client = aws_sdk_dynamodb::Client::new(&local.sdk_config());
        if start == 0 {
            lease_table(&client).await;
        }
        let row = client.get_item().table_name("leases").key("leaseKey", text("shard"));
        let row = row.send().await.expect("a reply").item.expect("a row");
        assert_eq!(row["owner"], text("nobody"));
        local.stop().await;
    }
}
