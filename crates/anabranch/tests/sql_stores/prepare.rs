//! Many workers make the tables at once.

use crate::postgres_server::Server;
use crate::steps::{done, join};
use anabranch::lease::{LeaseStore, PostgresStore, SqliteStore};
use tokio::task::JoinSet;

const ROUNDS: u32 = 30;
const WORKERS: u32 = 4;

/// Every worker prepares and joins at the same moment, each on connections of its own.
async fn check<S: LeaseStore>(round: u32, stores: Vec<S>) {
    let mut tasks = JoinSet::new();
    for (i, store) in stores.into_iter().enumerate() {
        tasks.spawn(async move {
            store.prepare().await.map_err(|error| error.to_string())?;
            done(&store, &join(&format!("w{i}"))).await;
            Ok::<_, String>(store)
        });
    }
    let mut last = None;
    while let Some(prepared) = tasks.join_next().await {
        last = Some(prepared.unwrap().unwrap_or_else(|error| panic!("round {round}: {error}")));
    }
    let look = last.unwrap().look().await.unwrap();
    assert_eq!((look.workers.len(), look.version), (4, Some(4)), "round {round}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_workers_may_open_a_fresh_file_at_once() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..ROUNDS {
        let path = folder.path().join(format!("{round}.db"));
        let stores = (0..WORKERS).map(|_| SqliteStore::open(&path, "app").unwrap());
        check(round, stores.collect()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_workers_may_make_a_schema_at_once() {
    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    for round in 0..ROUNDS {
        let store = || PostgresStore::connect(&url, "app").unwrap();
        let stores = (0..WORKERS).map(|_| store().with_schema(format!("round {round}")).unwrap());
        check(round, stores.collect()).await;
    }
}
