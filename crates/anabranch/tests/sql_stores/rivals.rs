//! Many writers on one row, each on connections of its own; and heartbeats that wait for none of
//! them.

use crate::postgres_server::Server;
use crate::steps::{create, done, join, owned, take};
use anabranch::lease::{LeaseStore, PostgresStore, SqliteStore};
use anabranch_model::lease::{Nonce, WorkerChange, WorkerId, Write, WriteOutcome, WriteRefusal};
use sqlx::postgres::PgPool;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::task::JoinSet;

const RIVALS: u32 = 8;
const ROUNDS: u64 = 20;
const PROCESSES: u32 = 3;
/// Path of the file, and the worker name, of a process in the contest.
const FILE: &str = "ANABRANCH_TEST_CONTEST";
const NAME: &str = "ANABRANCH_TEST_RIVAL";

/// Takes the lease under each term once, and returns the terms under which it won.
async fn contest<S: LeaseStore>(store: &S, name: &str) -> Vec<u64> {
    let mut won = Vec::new();
    for term in 0..ROUNDS {
        loop {
            match store.write(&take(0, name, term)).await {
                Ok(WriteOutcome::Done(_)) => won.push(term),
                Ok(WriteOutcome::Refused { .. }) => {}
                Ok(WriteOutcome::Unknown) => panic!("no reply was lost"),
                Err(error) => {
                    assert!(error.is_retryable(), "{error}");
                    continue;
                }
            }
            break;
        }
    }
    won
}

/// Asserts that each term was won once.
fn check(mut won: Vec<u64>) {
    won.sort_unstable();
    assert_eq!(won, (0..ROUNDS).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_rivals_with_connections_of_their_own_one_wins_each_round() {
    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    let first = PostgresStore::connect(&url, "app").unwrap();
    first.prepare().await.unwrap();
    let mut tasks = JoinSet::new();
    for i in 0..RIVALS {
        let store = PostgresStore::connect(&url, "app").unwrap();
        tasks.spawn(async move {
            store.poll().await.unwrap();
            let made = store.write(&create(0)).await.unwrap();
            let exists = matches!(made, WriteOutcome::Refused { why: WriteRefusal::Exists, .. });
            assert!(made.is_done() || exists, "{made:?}");
            (made.is_done(), contest(&store, &format!("r{i}")).await)
        });
    }
    let (made, won): (Vec<bool>, Vec<_>) = tasks.join_all().await.into_iter().unzip();
    assert_eq!(made.into_iter().filter(|made| *made).count(), 1, "one made the row");
    check(won.concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_processes_at_one_file_one_wins_each_round() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leases.db");
    let one = |i: u32| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "rivals::one_process_of_several", "--nocapture"]);
        child.env(FILE, &path).env(NAME, format!("r{i}")).stdout(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..PROCESSES).map(one).collect();
    let mut won = Vec::new();
    for child in children {
        let out = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{text}");
        let terms = text.lines().filter_map(|line| line.strip_prefix("won "));
        won.extend(terms.map(|term| term.parse::<u64>().unwrap()));
    }
    check(won);
}

/// Run by the test above in processes of its own; alone it does nothing.
#[tokio::test]
async fn one_process_of_several() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let store = SqliteStore::open(Path::new(&path), "app").unwrap();
    // All processes try to create the tables and the row; one of them does.
    while let Err(error) = store.prepare().await {
        assert!(error.is_retryable(), "{error}");
    }
    while let Err(error) = store.write(&create(0)).await {
        assert!(error.is_retryable(), "{error}");
    }
    println!();
    for term in contest(&store, &std::env::var(NAME).unwrap()).await {
        println!("won {term}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_beat_waits_for_no_crowd_of_other_writes() {
    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    let long = Duration::from_secs(30);
    let store = PostgresStore::connect(&url, "app").unwrap();
    let store = store.with_lock_timeout(long).unwrap().with_call_timeout(long).unwrap();
    store.prepare().await.unwrap();
    done(&store, &join("a")).await;
    let hold = owned(&store, 0).await;

    // Every other write waits for a locked row.
    let pool = PgPool::connect(&url).await.unwrap();
    let mut lock = pool.begin().await.unwrap();
    sqlx::query("SELECT shard FROM anabranch.lease FOR UPDATE").execute(&mut *lock).await.unwrap();
    let mut crowd = JoinSet::new();
    for _ in 0..RIVALS {
        let (store, write) = (store.clone(), take(0, "b", hold.term));
        crowd.spawn(async move { store.write(&write).await.unwrap() });
    }
    let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                   AND datname = current_database()";
    while sqlx::query(waiting).fetch_all(&pool).await.unwrap().len() < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let beat = WorkerChange::Beat { counter: 0 };
    done(&store, &Write::worker(&WorkerId::from("a"), beat, Nonce(9))).await;
    assert_eq!(store.poll().await.unwrap().workers[0].counter, 1);
    lock.rollback().await.unwrap();
    let won = crowd.join_all().await.into_iter().filter(WriteOutcome::is_done).count();
    assert_eq!(won, 1);
}
