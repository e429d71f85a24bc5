//! A checkpoint in the user's own transaction: stored with its effects, or not at all.

use crate::postgres_server::Server;
use crate::steps::{at, done, key, owned, sqlite, start, take};
use anabranch::lease::TransactionCheckpoint::{Refused, Written};
use anabranch::lease::{LeaseStore, PostgresStore, StoreError};
use anabranch_model::lease::{Nonce, PendingCheckpoint, Resolution, WriteRefusal, resolve};
use sqlx::postgres::PgPool;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use std::time::Duration;

/// The same test on both databases, whose transactions have no type in common.
macro_rules! together_or_not_at_all {
    ($store:expr, $pool:expr) => {{
        let (store, pool) = ($store, $pool);
        store.prepare().await.unwrap();
        sqlx::query("CREATE TABLE effect (of TEXT)").execute(&pool).await.unwrap();
        let effects = async || {
            let rows = sqlx::query("SELECT of FROM effect").fetch_all(&pool).await.unwrap();
            (rows.len(), store.get(&key(0)).await.unwrap().unwrap().checkpoint)
        };
        let effect = "INSERT INTO effect VALUES ('a batch')";
        let hold = owned(&store, 0).await;
        let pending = PendingCheckpoint { position: at(1).lowest(), state: None };
        let announce = hold.checkpoint(start(), start(), Some(pending), Nonce(5));
        done(&store, &announce).await;
        let version = store.poll().await.unwrap().version;

        // Committed: both are there, and a lost reply could be resolved from the row.
        let mut tx = pool.begin().await.unwrap();
        sqlx::query(effect).execute(&mut *tx).await.unwrap();
        let moved = store.checkpoint_in(&mut tx, &hold, &start(), &at(1), Nonce(6)).await;
        assert_eq!(moved.unwrap(), Written);
        tx.commit().await.unwrap();
        assert_eq!(effects().await, (1, at(1)));
        let write = hold.checkpoint(start(), at(1), None, Nonce(6));
        let row = store.read_back(&write).await.unwrap();
        assert_eq!(resolve(store.layout(), &write, &row), Resolution::Applied);
        assert_eq!(store.poll().await.unwrap().version, version, "checkpoints change no plan");

        // Rolled back: neither.
        let mut tx = pool.begin().await.unwrap();
        sqlx::query(effect).execute(&mut *tx).await.unwrap();
        let moved = store.checkpoint_in(&mut tx, &hold, &at(1), &at(2), Nonce(7)).await;
        assert_eq!(moved.unwrap(), Written);
        tx.rollback().await.unwrap();
        assert_eq!(effects().await, (1, at(1)));

        // Refused: by a checkpoint that moved, one that goes back, a missing row, a lost lease.
        let (mut missing, mut other) = (hold.clone(), hold.clone());
        missing.key = key(9);
        other.owner = "b".into();
        let mut tx = pool.begin().await.unwrap();
        for (hold, from, to, why) in [
            (&hold, start(), at(2), WriteRefusal::CheckpointMoved),
            (&hold, at(1), start(), WriteRefusal::CheckpointBehind),
            (&missing, at(1), at(2), WriteRefusal::Missing),
            (&other, at(1), at(2), WriteRefusal::NotOwner),
        ] {
            let refused = store.checkpoint_in(&mut tx, hold, &from, &to, Nonce(8)).await;
            assert_eq!(refused.unwrap(), Refused { why });
        }
        tx.rollback().await.unwrap();

        // An owner that takes its own row again invalidates its earlier transactions.
        let again = done(&store, &hold.retake(Nonce(20))).await.unwrap();
        let mut tx = pool.begin().await.unwrap();
        let late = store.checkpoint_in(&mut tx, &hold, &at(1), &at(2), Nonce(21)).await;
        assert_eq!(late.unwrap(), Refused { why: WriteRefusal::TermMoved });
        tx.rollback().await.unwrap();
        let hold = again;

        done(&store, &take(0, "b", hold.term)).await;
        let mut tx = pool.begin().await.unwrap();
        sqlx::query(effect).execute(&mut *tx).await.unwrap();
        let lost = store.checkpoint_in(&mut tx, &hold, &at(1), &at(2), Nonce(9)).await;
        assert_eq!(lost.unwrap(), Refused { why: WriteRefusal::TermMoved });
        tx.rollback().await.unwrap();
        assert_eq!(effects().await, (1, at(1)));

        // Other writers do not wait for an open transaction: they get an error.
        let lease = store.get(&key(0)).await.unwrap().unwrap();
        let mut tx = pool.begin().await.unwrap();
        let moved =
            store.checkpoint_in(&mut tx, &lease.token().unwrap(), &at(1), &at(3), Nonce(10)).await;
        assert_eq!(moved.unwrap(), Written);
        let busy = store.write(&take(0, "c", lease.term)).await.unwrap_err();
        assert!(matches!(busy, StoreError::Busy { .. }), "{busy:?}");
        tx.commit().await.unwrap();
        let hold = done(&store, &take(0, "c", lease.term)).await.unwrap();
        assert_eq!(effects().await, (1, at(3)));
        (store, pool, hold)
    }};
}

#[tokio::test]
async fn in_sqlite_a_checkpoint_is_stored_with_its_effects_or_not_at_all() {
    let (folder, store) = sqlite();
    store.prepare().await.unwrap();
    let options = SqliteConnectOptions::new().filename(folder.path().join("leases.db"));
    let pool = SqlitePool::connect_with(options).await.unwrap();
    let _ = together_or_not_at_all!(store, pool);
}

#[tokio::test]
async fn in_postgres_a_checkpoint_is_stored_with_its_effects_or_not_at_all() {
    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    let store = PostgresStore::connect(&url, "app").unwrap();
    let pool = PgPool::connect(&url).await.unwrap();
    let _ = together_or_not_at_all!(store, pool);
}

#[tokio::test]
async fn a_transaction_that_is_left_open_with_a_checkpoint_ends_by_itself() {
    let Some(server) = Server::shared() else { return };
    let url = server.fresh_database();
    let store = PostgresStore::connect(&url, "app").unwrap();
    store.prepare().await.unwrap();
    let hold = owned(&store, 0).await;
    let pool = PgPool::connect(&url).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let hasty = store.clone().with_call_timeout(Duration::from_secs(1)).unwrap();
    let moved = hasty.checkpoint_in(&mut tx, &hold, &start(), &at(1), Nonce(6)).await;
    assert_eq!(moved.unwrap(), Written);
    for _ in 0..100 {
        match store.write(&take(0, "b", hold.term)).await {
            Ok(outcome) => {
                assert_eq!(outcome.lease().unwrap().checkpoint, start(), "rolled back");
                assert!(tx.commit().await.is_err(), "its effects are gone too");
                return;
            }
            Err(error) => assert!(matches!(error, StoreError::Busy { .. }), "{error:?}"),
        }
    }
    panic!("the transaction holds the row for ever");
}
