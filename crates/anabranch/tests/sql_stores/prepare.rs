//! Many workers make the tables at once.

use crate::postgres_server::Server;
use crate::refusals::sqlite;
use crate::steps::{at, done, join, key, owned, start};
use anabranch::lease::{LeaseStore, PostgresStore, SqliteStore};
use anabranch_model::lease::{Nonce, WorkerChange, Write};
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

/// What takes a database of today back to version 1: the rows stay.
const BACK_TO_1: &str = "ALTER TABLE {t}lease DROP COLUMN bytes_per_second; \
    ALTER TABLE {t}worker DROP COLUMN streams; \
    DELETE FROM {t}schema_version WHERE version > 1";

/// Rows of version 1 are there after the step to today's, and take what is new. `old` was open
/// before the step, `open` makes stores that take it, and `sql` speaks to the database.
async fn check_migrates<S: LeaseStore>(old: S, open: impl Fn() -> S, sql: impl AsyncFn(&str)) {
    old.prepare().await.unwrap();
    done(&old, &join("a")).await;
    let hold = owned(&old, 0).await;
    done(&old, &hold.checkpoint(start(), at(4), None, Nonce(9))).await;
    let (lease, look) = (old.get(&key(0)).await.unwrap(), old.look().await.unwrap());
    sql(BACK_TO_1).await;
    let stores: Vec<S> = (0..WORKERS).map(|_| open()).collect();
    let mut last = None;
    for store in stores {
        store.prepare().await.unwrap();
        last = Some(store);
    }
    let store = last.unwrap();
    assert_eq!(store.get(&key(0)).await.unwrap(), lease);
    assert_eq!(store.look().await.unwrap(), look);
    // Connections that were open before the step go on.
    done(&old, &hold.checkpoint(at(4), at(5), None, Nonce(10))).await;
    let write = hold.checkpoint_at_rate(at(5), at(6), None, Some(4_096), Nonce(11));
    done(&store, &write).await;
    let reads = WorkerChange::Reads { counter: 0, streams: vec!["orders".into()] };
    done(&store, &Write::worker(&"a".into(), reads, Nonce(12))).await;
    assert_eq!(store.get(&key(0)).await.unwrap().unwrap().bytes_per_second, Some(4_096));
    let look = store.look().await.unwrap();
    assert_eq!(look.workers[0].reads, Some(vec!["orders".into()]));
    // Once more, on a database that is up to date.
    store.prepare().await.unwrap();
    assert_eq!(store.look().await.unwrap(), look);
}

#[tokio::test]
async fn a_sqlite_file_of_version_1_is_brought_up_to_date_with_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let open = || SqliteStore::open(&path, "app").unwrap();
    let sql = async |sql: &str| sqlite(&path, &sql.replace("{t}", "anabranch_")).await;
    check_migrates(open(), open, sql).await;
}

#[tokio::test]
async fn a_postgres_schema_of_version_1_is_brought_up_to_date_with_its_rows() {
    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    let database = url.rsplit('/').next().unwrap();
    let open = || PostgresStore::connect(&url, "app").unwrap();
    check_migrates(open(), open, async |sql: &str| {
        server.sql(database, &sql.replace("{t}", "anabranch."));
    })
    .await;
}
