//! The conformance suite of all lease stores.

use crate::postgres_server::Server;
use crate::steps::sqlite;
use anabranch::lease::{PostgresStore, conformance};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_sqlite_store_keeps_the_rules() {
    let (_folder, store) = sqlite();
    conformance::run(store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_postgres_store_keeps_the_rules() {
    let Some(server) = Server::shared() else { return };
    // As many connections as rivals, so that they really compete.
    let store = PostgresStore::connect(&server.fresh_database(), "app").unwrap();
    conformance::run(store.with_connections(16).unwrap()).await;
}
