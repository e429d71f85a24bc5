//! Creation and migration of the tables, by many workers at once.

use crate::postgres_server::Server;
use crate::refusals::sqlite;
use crate::steps::{at, done, join, key, owned, start};
use anabranch::lease::{LeaseStore, PostgresStore, SqliteStore};
use anabranch_model::lease::{Nonce, WorkerChange, Write};
use sqlx::postgres::PgPool;
use std::time::Duration;
use tokio::task::JoinSet;

const ROUNDS: u32 = 30;
const WORKERS: u32 = 4;

/// Lets every worker prepare and join at the same moment, each on connections of its own.
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
    let look = last.unwrap().poll().await.unwrap();
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

/// Statements that downgrade a current database to version 1. The rows stay.
const BACK_TO_1: &str = "ALTER TABLE {t}lease DROP COLUMN bytes_per_second; \
    ALTER TABLE {t}worker DROP COLUMN streams; \
    ALTER TABLE {t}worker DROP COLUMN lease_time_ms; \
    ALTER TABLE {t}schema_version DROP COLUMN min_reader; \
    DELETE FROM {t}schema_version WHERE version > 1";

/// Checks that rows of version 1 are there after the migration, and accept the new fields. `old`
/// was open before the migration, `open` creates stores that perform it, and `sql` runs statements.
async fn check_migrates<S: LeaseStore>(old: S, open: impl Fn() -> S, sql: impl AsyncFn(&str)) {
    old.prepare().await.unwrap();
    done(&old, &join("a")).await;
    let hold = owned(&old, 0).await;
    done(&old, &hold.checkpoint(start(), at(4), None, Nonce(9))).await;
    let (lease, look) = (old.get(&key(0)).await.unwrap(), old.poll().await.unwrap());
    sql(BACK_TO_1).await;
    let stores: Vec<S> = (0..WORKERS).map(|_| open()).collect();
    let mut last = None;
    for store in stores {
        store.prepare().await.unwrap();
        last = Some(store);
    }
    let store = last.unwrap();
    assert_eq!(store.get(&key(0)).await.unwrap(), lease);
    assert_eq!(store.poll().await.unwrap(), look);
    // Connections that were open before the migration keep working.
    done(&old, &hold.checkpoint(at(4), at(5), None, Nonce(10))).await;
    let write = hold.checkpoint_at_rate(at(5), at(6), None, Some(4_096), Nonce(11));
    done(&store, &write).await;
    let reads = WorkerChange::SetStreams { counter: 0, streams: vec!["orders".into()] };
    done(&store, &Write::worker(&"a".into(), reads, Nonce(12))).await;
    assert_eq!(store.get(&key(0)).await.unwrap().unwrap().bytes_per_second, Some(4_096));
    let lease_time_ms = Some(60_000);
    let join = WorkerChange::Join { host: "h".into(), started_ms: 6, reads: None, lease_time_ms };
    done(&store, &Write::worker(&"b".into(), join, Nonce(13))).await;
    let beat = WorkerChange::Beat { counter: 0 };
    done(&store, &Write::worker(&"b".into(), beat, Nonce(14))).await;
    let look = store.poll().await.unwrap();
    let worker = |id: &str| look.workers.iter().find(|it| it.id.as_str() == id).unwrap();
    assert_eq!(worker("a").reads, Some(vec!["orders".into()]));
    // A row of an older version has no lease time: observers use their own.
    assert_eq!((worker("a").lease_time_ms, worker("b").lease_time_ms), (None, lease_time_ms));
    // Once more, on a database that is up to date.
    store.prepare().await.unwrap();
    assert_eq!(store.poll().await.unwrap(), look);
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

/// Writes of workers of the previous release, which run with their lock timeout.
const OLD_WRITES: [&str; 2] =
    ["UPDATE anabranch.lease SET nonce = nonce + 1", "UPDATE anabranch.worker SET counter = 7"];

/// Checks that workers which wait to add columns to tables in a long read transaction do not block
/// the writes of the previous release. Once the reader is done, they add the columns.
async fn check_makes_room(reads: &[&str]) {
    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    let open = || PostgresStore::connect(&url, "app").unwrap();
    let old = open();
    old.prepare().await.unwrap();
    done(&old, &join("a")).await;
    let _hold = owned(&old, 0).await;
    server.sql(url.rsplit('/').next().unwrap(), &BACK_TO_1.replace("{t}", "anabranch."));

    let pool = PgPool::connect(&url).await.unwrap();
    let mut reader = pool.begin().await.unwrap();
    for table in reads {
        let read = format!("SELECT * FROM anabranch.{table}");
        sqlx::query(sqlx::AssertSqlSafe(read)).execute(&mut *reader).await.unwrap();
    }
    let mut starting = JoinSet::new();
    for store in [open(), open(), open()] {
        starting.spawn(async move {
            while let Err(error) = store.prepare().await {
                assert!(error.is_retryable(), "{error}");
            }
        });
    }
    // Each time that one of them queues, all writes behind it succeed.
    let queues = "SELECT pid FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock' \
                  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    for _ in 0..3 {
        while sqlx::query(queues).fetch_all(&pool).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for write in OLD_WRITES {
            let mut worker = pool.begin().await.unwrap();
            sqlx::query("SET LOCAL lock_timeout = '500ms'").execute(&mut *worker).await.unwrap();
            let written = sqlx::query(write).execute(&mut *worker).await;
            assert_eq!(written.unwrap().rows_affected(), 1, "{write} beside {reads:?}");
            worker.commit().await.unwrap();
        }
    }
    reader.rollback().await.unwrap();
    starting.join_all().await;
    done(&open(), &join("b")).await;
    assert_eq!(open().poll().await.unwrap().workers.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_migration_lets_workers_write_while_a_reader_keeps_it_from_the_table() {
    for reads in [&["lease", "worker"][..], &["worker"], &["lease"]] {
        check_makes_room(reads).await;
    }
}

/// Checks that tables of a later version are used if they permit this version.
async fn check_later<S: LeaseStore>(store: S, sql: impl AsyncFn(&str)) {
    store.prepare().await.unwrap();
    done(&store, &join("a")).await;
    // Tables created by this version name the oldest permitted one: an insert would fail otherwise.
    sql("INSERT INTO {t}schema_version (version, min_reader) SELECT 6, min_reader FROM {t}schema_version WHERE version = (SELECT max(version) FROM {t}schema_version)").await;
    store.prepare().await.unwrap();
    sql("ALTER TABLE {t}lease ADD COLUMN later bigint").await;
    sql("INSERT INTO {t}schema_version (version, min_reader) VALUES (7, 3)").await;
    store.prepare().await.unwrap();
    let hold = owned(&store, 0).await;
    done(&store, &hold.checkpoint(start(), at(4), None, Nonce(9))).await;
    sql("INSERT INTO {t}schema_version (version, min_reader) VALUES (8, 5)").await;
    let error = store.prepare().await.unwrap_err().to_string();
    assert!(
        error.contains("version 8") && error.contains("releases with version 5 or later"),
        "{error}"
    );
}

#[tokio::test]
async fn an_old_worker_starts_on_tables_of_a_later_version_that_it_may_use() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let speak = async |sql: &str| {
        sqlite(&path, &sql.replace("{t}", "anabranch_").replace("bigint", "INTEGER")).await;
    };
    check_later(SqliteStore::open(&path, "app").unwrap(), speak).await;
    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    let speak = async |sql: &str| {
        server.sql(url.rsplit('/').next().unwrap(), &sql.replace("{t}", "anabranch."));
    };
    check_later(PostgresStore::connect(&url, "app").unwrap(), speak).await;
}
