//! The server dies and comes back.

use crate::postgres_server::Server;
use crate::steps::{at, create, done, key, owned, start, take};
use anabranch::lease::{LeaseStore, PostgresStore};
use anabranch_model::lease::{Checkpoint, LeaseToken, Nonce, Resolution, WriteOutcome, resolve};
use std::time::Duration;
use tokio::task::JoinSet;

const WRITERS: u32 = 6;
const DEATHS: u32 = 3;

/// Last write of a writer before it noticed the crash.
struct LastWrite {
    hold: LeaseToken,
    replaces: Checkpoint,
    to: Checkpoint,
    /// `None` for an error, which means that nothing was written.
    outcome: Option<WriteOutcome>,
}

/// Writes checkpoints as fast as possible, starting after `last`, until the server is gone.
async fn write_until_it_dies(
    store: PostgresStore,
    hold: LeaseToken,
    mut last: (Checkpoint, u64),
) -> (LastWrite, u64) {
    loop {
        let (replaces, to) = (last.0, at(last.1 + 1));
        let write = hold.checkpoint(replaces.clone(), to.clone(), None, Nonce(last.1 + 1));
        match store.write(&write).await {
            Ok(WriteOutcome::Done(_)) => last = (to, last.1 + 1),
            outcome => {
                let outcome = outcome.ok();
                return (LastWrite { hold, replaces, to, outcome }, last.1 + 1);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_outcome_before_a_kill_is_true_after_it() {
    let Some(server) = Server::start() else { return };
    // A server configured for speed, which may lose acknowledged commits: the store overrides that.
    server.sql("postgres", "ALTER SYSTEM SET wal_writer_delay = '10s'");
    server.sql("postgres", "SELECT pg_reload_conf()");
    server.sql("postgres", "ALTER DATABASE postgres SET synchronous_commit = off");
    let store = PostgresStore::connect(&server.url("postgres"), "app").unwrap();
    let store = store.with_connections(WRITERS as usize).unwrap();
    store.prepare().await.unwrap();
    let mut numbers = vec![0; WRITERS as usize];
    for shard in 0..WRITERS {
        owned(&store, shard).await;
    }
    let mut unknown = 0;
    for _ in 0..DEATHS {
        let mut writers = JoinSet::new();
        for shard in 0..WRITERS {
            let lease = store.get(&key(shard)).await.unwrap().unwrap();
            let last = (lease.checkpoint.clone(), numbers[shard as usize]);
            writers.spawn(write_until_it_dies(store.clone(), lease.token().unwrap(), last));
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.kill();
        let ended = writers.join_all().await;
        server.restart();
        for (last, number) in ended {
            let shard = last.hold.key.shard.index().unwrap();
            numbers[shard as usize] = number;
            let write =
                last.hold.checkpoint(last.replaces.clone(), last.to.clone(), None, Nonce(number));
            let row = store.read_back(&write).await.unwrap();
            let resolution = resolve(store.layout(), &write, &row);
            let now = store.get(&last.hold.key).await.unwrap().unwrap().checkpoint;
            match last.outcome {
                // Acknowledged writes are there: the row holds this write or the last.
                Some(WriteOutcome::Unknown) => {
                    unknown += 1;
                    assert!(now == last.replaces || now == last.to, "{shard}: {now}");
                    let applied = resolution == Resolution::Applied;
                    assert_eq!(applied, now == last.to, "{shard}: {resolution:?}");
                }
                None => assert_eq!(now, last.replaces, "an error says: nothing was written"),
                Some(other) => panic!("{shard}: {other:?}"),
            }
        }
    }
    println!("{unknown} of {} writes were unknown", WRITERS * DEATHS);
    done(&store, &create(WRITERS)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_goes_on_when_the_server_has_hung_up_on_idle_connections() {
    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    let database = url.rsplit('/').next().unwrap();
    let store = PostgresStore::connect(&url, "app").unwrap();
    store.prepare().await.unwrap();
    let hold = owned(&store, 0).await;
    let hang_up = || {
        server.sql(
            "postgres",
            &format!(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity \
                 WHERE datname = '{database}'"
            ),
        );
    };
    hang_up();
    done(&store, &hold.checkpoint(start(), at(1), None, Nonce(5))).await;
    hang_up();
    assert_eq!(store.get(&key(0)).await.unwrap().unwrap().checkpoint, at(1));
    hang_up();
    store.prepare().await.unwrap();
    done(&store, &take(0, "b", hold.term)).await;
}
