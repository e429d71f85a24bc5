//! The conformance suite that every store must pass, unchanged.

use crate::server::Server;
use crate::table_per_stream::TablePerStream;
use anabranch::lease::stores::dynamodb::KclStreamId;
use anabranch::lease::{DynamoDbStore, conformance};
use anabranch_model::ids::StreamName;
use std::time::Duration;

/// Longer than a call takes on any busy machine: a call that times out is neither done nor refused.
const PATIENT: Duration = Duration::from_mins(2);

fn identify(stream: &StreamName) -> Option<KclStreamId> {
    KclStreamId::new("123456789012", stream.as_str(), 1_700_000_000).ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_native_layout_keeps_its_rules_on_the_embedded_dynamodb() {
    let server = Server::embedded().await;
    conformance::run(DynamoDbStore::native(&server.config(), "leases")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_multi_stream_table_keeps_kcls_rules_on_the_embedded_dynamodb() {
    let server = Server::embedded().await;
    conformance::run(DynamoDbStore::kcl_multi_stream(&server.config(), "app", identify)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn single_stream_tables_keep_kcls_rules_on_the_embedded_dynamodb() {
    let server = Server::embedded().await;
    conformance::run(TablePerStream::new(server.config())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_native_layout_keeps_its_rules_on_dynamodb_local() {
    let Some(server) = Server::java("the native layout on DynamoDB Local").await else { return };
    let store = DynamoDbStore::native(&server.config(), "leases");
    conformance::run(store.with_call_timeout(PATIENT)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_multi_stream_table_keeps_kcls_rules_on_dynamodb_local() {
    let Some(server) = Server::java("KCL's layout on DynamoDB Local").await else { return };
    let store = DynamoDbStore::kcl_multi_stream(&server.config(), "app", identify);
    conformance::run(store.with_call_timeout(PATIENT)).await;
}
