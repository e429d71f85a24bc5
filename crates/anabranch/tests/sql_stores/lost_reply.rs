//! A write whose `COMMIT` got no reply has an unknown outcome, which the row resolves.

use crate::postgres_server::Server;
use crate::proxy::{Proxy, ProxyMode};
use crate::steps::{done, key, owned, take};
use anabranch::lease::{LeaseStore, PostgresStore, StoreError};
use anabranch_model::lease::{Resolution, Write, WriteOutcome, WriteRefusal, resolve};
use std::sync::Arc;
use std::time::Duration;

/// Returns a store that reaches its server through a proxy, and one that needs none.
async fn both_ways(server: &Arc<Server>) -> (Proxy, PostgresStore, PostgresStore) {
    let direct = server.fresh_database();
    let proxy = Proxy::to(server.port()).await;
    let through = direct.replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port));
    let store = PostgresStore::connect(&format!("{through}?sslmode=disable"), "app").unwrap();
    store.prepare().await.unwrap();
    (proxy, store, PostgresStore::connect(&direct, "app").unwrap())
}

async fn resolved(store: &PostgresStore, write: &Write) -> Resolution {
    resolve(store.layout(), write, &store.read_back(write).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_commit_without_an_answer_is_unknown_and_the_row_tells() {
    let Some(server) = Server::shared() else { return };
    let (proxy, store, direct) = both_ways(&server).await;
    for (shard, mode, becomes) in [
        (0, ProxyMode::CutBeforeCommit, Resolution::StillUnknown),
        (1, ProxyMode::CutAfterCommit, Resolution::Applied),
    ] {
        let hold = owned(&store, shard).await;
        let write = take(shard, "b", hold.term);
        proxy.set(mode);
        assert_eq!(store.write(&write).await.unwrap(), WriteOutcome::Unknown, "{mode:?}");
        proxy.set(ProxyMode::Pass);
        assert_eq!(resolved(&direct, &write).await, becomes, "{mode:?}");
        // The same write again: done now, or refused with the row that shows the first attempt.
        match store.write(&write).await.unwrap() {
            WriteOutcome::Done(_) => assert_eq!(mode, ProxyMode::CutBeforeCommit),
            WriteOutcome::Refused { why: WriteRefusal::TermMoved, now: Some(now) } => {
                assert_eq!(resolve(store.layout(), &write, &now), Resolution::Applied);
            }
            other => panic!("{mode:?}: {other:?}"),
        }
        assert_eq!(direct.get(&key(shard)).await.unwrap().unwrap().term, hold.term + 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_commit_that_arrives_late_is_applied_after_the_read_back() {
    let Some(server) = Server::shared() else { return };
    let (proxy, store, direct) = both_ways(&server).await;
    let hold = owned(&store, 0).await;
    let write = take(0, "b", hold.term);
    proxy.set(ProxyMode::HoldCommit);
    assert_eq!(store.write(&write).await.unwrap(), WriteOutcome::Unknown);
    assert_eq!(resolved(&direct, &write).await, Resolution::StillUnknown);
    // Its row is locked until the server has decided, so no other writer can change it meanwhile.
    let busy = direct.write(&take(0, "c", hold.term)).await.unwrap_err();
    assert!(matches!(busy, StoreError::Busy { .. }), "{busy:?}");
    assert!(busy.to_string().contains("the row lock"), "the lock's own time-out: {busy}");
    proxy.set(ProxyMode::Pass);
    while resolved(&direct, &write).await != Resolution::Applied {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_silent_network_is_an_error_before_the_commit_and_leaves_no_connection_behind() {
    let Some(server) = Server::shared() else { return };
    let (proxy, store, direct) = both_ways(&server).await;
    let hold = owned(&direct, 0).await;
    let store = store.with_call_timeout(Duration::from_millis(300)).unwrap();
    // A connection that is open when the network goes silent.
    while store.poll().await.is_err() {}
    let write = take(0, "b", hold.term);
    proxy.set(ProxyMode::Mute);
    // More often than there are connections: each is dropped, and none is waited for.
    for _ in 0..6 {
        let error = store.write(&write).await.unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
        let error = store.poll().await.unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    }
    assert_eq!(resolved(&direct, &write).await, Resolution::StillUnknown);
    proxy.set(ProxyMode::Pass);
    let store = store.with_call_timeout(Duration::from_secs(5)).unwrap();
    done(&store, &write).await;
}
