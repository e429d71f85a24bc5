//! Notifications: a store that waits for a change of the plan is woken.

use crate::postgres_server::Server;
use crate::proxy::{Proxy, ProxyMode};
use crate::steps::{create, done, key, take};
use crate::warnings::Warnings;
use anabranch::lease::{AnyStore, LeaseStore, PostgresStore};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Long enough for any machine. Only a failing test waits for it.
const FOR_EVER: Duration = Duration::from_mins(1);

async fn hears(store: &impl LeaseStore, what: &str) {
    let heard = tokio::time::timeout(FOR_EVER, store.wait_for_change()).await;
    assert!(heard.is_ok(), "nothing was heard of {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_change_of_the_plan_is_heard_also_after_the_connection_died() {
    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    let database = url.rsplit('/').next().unwrap();
    let [listens, writes] = [(), ()].map(|()| PostgresStore::connect(&url, "app").unwrap());
    let other = PostgresStore::connect(&url, "other").unwrap();
    for store in [&writes, &other] {
        store.prepare().await.unwrap();
    }
    hears(&listens, "its own beginning").await;
    done(&writes, &create(0)).await;
    hears(&listens, "a lease that was made").await;

    // Changes between two calls are not lost, and each clone is woken, also behind `AnyStore`.
    let clone = AnyStore::from(listens.clone());
    done(&writes, &take(0, "a", 0)).await;
    hears(&listens, "a take").await;
    hears(&clone, "a take").await;

    // Neither another application's writes nor checkpoints wake a waiter.
    done(&other, &create(0)).await;
    let lease = writes.get(&key(0)).await.unwrap().unwrap();
    let hold = lease.token().unwrap();
    let to = crate::steps::at(1);
    done(&writes, &hold.checkpoint(lease.checkpoint, to, None, anabranch_model::lease::Nonce(50)))
        .await;
    let woken = tokio::time::timeout(Duration::from_millis(500), listens.wait_for_change()).await;
    assert!(woken.is_err(), "woken without a reason");

    server.sql(
        "postgres",
        &format!(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity \
             WHERE datname = '{database}' AND query LIKE 'LISTEN%'"
        ),
    );
    hears(&listens, "a new connection").await;
    done(&writes, &take(0, "b", hold.term)).await;
    hears(&listens, "a take after that").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_is_far_away_is_heard() {
    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    PostgresStore::connect(&url, "app").unwrap().prepare().await.unwrap();
    let proxy = Proxy::to(server.port()).await;
    proxy.set(ProxyMode::Far);
    let far = url.replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port));
    let store = PostgresStore::connect(&far, "app").unwrap();
    hears(&store, "a server that is far away").await;
}

/// A listener retries less and less often, and warns once.
#[tokio::test]
async fn a_server_that_refuses_is_asked_less_and_less_often() {
    let proxy = Proxy::to(1).await;
    proxy.set(ProxyMode::Closed);
    let warnings = Warnings::default();
    let _here = tracing::subscriber::set_default(warnings.clone());
    let url = format!("postgres://me@127.0.0.1:{}/db?sslmode=disable", proxy.port);
    let store = PostgresStore::connect(&url, "app").unwrap();
    let waited = tokio::time::timeout(Duration::from_secs(12), store.wait_for_change()).await;
    assert!(waited.is_err(), "nothing can have been heard");
    let tries = proxy.accepted.load(Ordering::Relaxed);
    assert!((3..=5).contains(&tries), "{tries} connections in 12 s");
    assert_eq!(warnings.count(), 1);
}
