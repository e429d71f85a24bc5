//! Contention of many workers for one row.

use super::scene::StoreFixture;
use crate::lease::LeaseStore;
use anabranch_model::lease::{
    Layout, LeaseChange, Nonce, WorkerChange, WorkerId, Write, WriteOutcome,
};
use tokio::task::JoinSet;

const RIVALS: u64 = 16;
const ROUNDS: u64 = 20;
/// Maximum number of attempts of a rival while the store is busy.
const TRIES: u32 = 100;

pub(super) async fn prepare_at_once<S: LeaseStore + Clone>(store: &S) {
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let store = store.clone();
        tasks.spawn(async move { store.prepare().await });
    }
    while let Some(prepared) = tasks.join_next().await {
        prepared.expect("no panic").expect("two may prepare a store at once");
    }
    store.prepare().await.expect("a store that is ready may be prepared again");
}

pub(super) async fn one_winner_each_round<S: LeaseStore + Clone>(store: &S) {
    let mut scene = StoreFixture::new(store, "contest");
    scene.create(0).await;
    let key = scene.key(0);
    for round in 0..ROUNDS {
        let take = |rival: u64| {
            let taker = WorkerId::of_join("rival", rival);
            let change = LeaseChange::Take { taker, term: round };
            Write::lease(&key, change, Nonce(1 + round * RIVALS + rival))
        };
        let won = winners(store, (0..RIVALS).map(take).collect()).await;
        assert_eq!(won.len(), 1, "round {round}: {won:?}");
        let lease = store.get(&key).await.expect("the store answers").expect("the lease is there");
        assert_eq!(Some(lease.clone()), won[0].lease().cloned(), "the winner is on the row");
        assert_eq!(lease.term, round + 1);
    }
}

pub(super) async fn one_fence_counts<S: LeaseStore + Clone>(store: &S) {
    if store.layout() == Layout::Kcl {
        return;
    }
    let mut scene = StoreFixture::new(store, "fence-contest");
    scene.join("a").await;
    let fences = (0..RIVALS).map(|rival| {
        // A beat competes with fences on the counter before it: exactly one write wins.
        let change = if rival == 0 {
            WorkerChange::Beat { counter: 0 }
        } else {
            WorkerChange::Fence { counter: 0 }
        };
        Write::worker(&scene.id("a"), change, Nonce(1_000 + rival))
    });
    let won = winners(store, fences.collect()).await;
    assert_eq!(won.len(), 1, "{won:?}");
}

/// Makes all writes concurrently. Returns the outcomes of those that were applied.
async fn winners<S: LeaseStore + Clone>(store: &S, writes: Vec<Write>) -> Vec<WriteOutcome> {
    let mut tasks = JoinSet::new();
    for write in writes {
        let store = store.clone();
        tasks.spawn(async move {
            for _ in 0..TRIES {
                match store.write(&write).await {
                    Ok(outcome) => return outcome,
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            }
            panic!("{write:?}: the store stayed busy")
        });
    }
    let mut won = Vec::new();
    while let Some(outcome) = tasks.join_next().await {
        let outcome = outcome.expect("no panic");
        assert_ne!(outcome, WriteOutcome::Unknown, "no reply was lost");
        if outcome.is_done() {
            won.push(outcome);
        }
    }
    won
}
