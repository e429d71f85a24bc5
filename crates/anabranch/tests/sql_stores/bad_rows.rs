//! One unreadable row blocks nothing but its shard.

use crate::bad_row::{self, BAD};
use crate::postgres_server::Server;
use crate::steps::{done, join, sqlite};
use anabranch::lease::{LeaseStore, PostgresStore, SqliteStore};
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use std::path::Path;

async fn change(path: &Path, sql: &'static str) {
    let mut connection = SqliteConnectOptions::new().filename(path).connect().await.unwrap();
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
}

const SPOIL: &str = "checkpoint = 'soon' WHERE shard LIKE '%-000000000000'";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fleet_on_sqlite_goes_on_beside_a_row_that_makes_no_sense() {
    assert_eq!(BAD, 0);
    let (folder, store) = sqlite();
    let path = folder.path().join("leases.db");
    let other = SqliteStore::open(&path, "app").unwrap();
    let sql = "UPDATE anabranch_lease SET checkpoint = 'soon' WHERE shard LIKE '%-000000000000'";
    Box::pin(bad_row::check([store, other], async || change(&path, sql).await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fleet_on_postgres_goes_on_beside_a_row_that_makes_no_sense() {
    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    let database = url.rsplit('/').next().unwrap();
    let stores = [(), ()].map(|()| PostgresStore::connect(&url, "app").unwrap());
    let sql = format!("UPDATE anabranch.lease SET {SPOIL}");
    let spoil = async || drop(server.sql(database, &sql));
    Box::pin(bad_row::check(stores, spoil)).await;
}

#[tokio::test]
async fn a_worker_whose_row_makes_no_sense_is_named_beside_the_others() {
    let (folder, store) = sqlite();
    store.prepare().await.unwrap();
    done(&store, &join("a")).await;
    done(&store, &join("b")).await;
    let path = folder.path().join("leases.db");
    change(&path, "UPDATE anabranch_worker SET state = 'asleep' WHERE worker = 'a'").await;
    bad_row::check_worker(&store, ["a", "b"]).await;
    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    let store = PostgresStore::connect(&url, "app").unwrap();
    store.prepare().await.unwrap();
    done(&store, &join("a")).await;
    done(&store, &join("b")).await;
    let database = url.rsplit('/').next().unwrap();
    server.sql(database, "UPDATE anabranch.worker SET state = 'asleep' WHERE worker = 'a'");
    bad_row::check_worker(&store, ["a", "b"]).await;
}
