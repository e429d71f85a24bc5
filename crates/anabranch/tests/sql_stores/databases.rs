//! Databases with various encodings and session settings.

use crate::postgres_server::Server;
use crate::steps::{create, done, join, key, take};
use anabranch::lease::{LeaseStore, PostgresStore, conformance};
use anabranch_model::lease::WorkerId;

/// A worker with letters of two, three and four bytes.
const NAME: &str = "wörker-日本-😀";

/// Creates a database with options of `CREATE DATABASE`, and with a setting for all its sessions.
fn database(server: &Server, name: &str, options: &str, setting: &str) -> String {
    server.sql("postgres", &format!("CREATE DATABASE {name} TEMPLATE template0 {options}"));
    server.sql("postgres", &format!("ALTER DATABASE {name} SET {setting}"));
    server.url(name)
}

async fn keeps_the_rules(url: &str) {
    let store = PostgresStore::connect(url, "app").unwrap();
    conformance::run(store.with_connections(16).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_suite_passes_where_bytes_are_shown_as_escapes() {
    let Some(server) = Server::shared() else { return };
    keeps_the_rules(&database(&server, "escapes", "", "bytea_output = 'escape'")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn names_are_kept_whatever_the_encoding_of_the_database() {
    let Some(server) = Server::shared() else { return };
    for (name, options, worker) in [
        ("as_utf8", "ENCODING 'UTF8' LOCALE 'C'", NAME),
        ("as_bytes", "ENCODING 'SQL_ASCII' LOCALE 'C'", NAME),
        // It has fewer letters.
        ("as_latin", "ENCODING 'LATIN1' LOCALE 'C'", "wörker"),
    ] {
        let url = database(&server, name, options, "standard_conforming_strings = on");
        let store = PostgresStore::connect(&url, "app").unwrap();
        store.prepare().await.unwrap();
        done(&store, &join(worker)).await;
        done(&store, &create(0)).await;
        done(&store, &take(0, worker, 0)).await;
        let lease = store.get(&key(0)).await.unwrap().unwrap();
        assert_eq!(lease.owner, Some(WorkerId::from(worker)), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_suite_passes_in_a_database_without_an_encoding() {
    let Some(server) = Server::shared() else { return };
    let options = "ENCODING 'SQL_ASCII' LOCALE 'C'";
    keeps_the_rules(&database(&server, "bytes", options, "standard_conforming_strings = off"))
        .await;
}
