//! The PostgreSQL store passes the suite on a real server, and keeps what many machines need.

#[path = "../postgres_server/mod.rs"]
mod postgres_server;

use anabranch::lease::{PostgresStore, conformance};
use postgres_server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_postgres_store_keeps_the_rules() {
    let Some(server) = Server::shared() else { return };
    conformance::run(PostgresStore::connect(&server.fresh_database(), "app").unwrap()).await;
}
