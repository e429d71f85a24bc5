//! TLS connections to PostgreSQL, with verification of the certificate.

use crate::postgres_server::Server;
use anabranch::lease::{LeaseStore, PostgresStore};

#[tokio::test]
async fn a_server_is_reached_over_tls_and_refused_under_another_name() {
    let Some(server) = Server::start() else { return };
    let Some(certificate) = server.turn_tls_on() else {
        println!("skipped: openssl is missing: apt install openssl");
        return;
    };
    let root = certificate.to_str().unwrap();
    let url = |host: &str, how: &str| {
        let url = server.url("postgres").replace("127.0.0.1", host);
        format!("{url}?{how}&sslrootcert={root}")
    };
    for (url, works) in [
        (url("127.0.0.1", "sslmode=require"), true),
        (url("127.0.0.1", "sslmode=verify-full"), true),
        (url("localhost", "sslmode=verify-full"), false),
    ] {
        let store = PostgresStore::connect(&url, "app").unwrap();
        let prepared = store.prepare().await;
        assert_eq!(prepared.is_ok(), works, "{url}: {prepared:?}");
    }
    let seen = "SELECT count(*) > 0 FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) \
                WHERE s.ssl AND a.application_name = 'anabranch'";
    let store = PostgresStore::connect(&url("127.0.0.1", "sslmode=require"), "app").unwrap();
    store.prepare().await.unwrap();
    assert_eq!(server.sql("postgres", seen), "t", "the connections are encrypted");
}
