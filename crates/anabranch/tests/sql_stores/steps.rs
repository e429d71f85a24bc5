//! A few writes that most tests begin with.

use anabranch::lease::{LeaseStore, SqliteStore};
use anabranch_model::hash::HashRange;
use anabranch_model::ids::ShardId;
use anabranch_model::lease::{
    Checkpoint, LeaseChange, LeaseKey, LeaseToken, NewLease, Nonce, WorkerChange, WorkerId, Write,
    WriteOutcome,
};
use anabranch_model::position::Position;
use anabranch_model::sequence::SequenceNumber;
use tempfile::TempDir;

pub(crate) fn key(shard: u32) -> LeaseKey {
    LeaseKey { stream: "orders".into(), shard: ShardId::from_index(shard) }
}

pub(crate) fn start() -> Checkpoint {
    Checkpoint::at(Position::TrimHorizon)
}

pub(crate) fn at(low: u64) -> Checkpoint {
    let sequence = SequenceNumber::from_limbs(0, 7, low).unwrap();
    Checkpoint::at(Position::At { sequence, sub: 0 })
}

pub(crate) fn create(shard: u32) -> Write {
    let new = NewLease {
        shard: key(shard).shard,
        parents: vec![],
        range: HashRange::ALL,
        checkpoint: Position::TrimHorizon,
    };
    new.create(&key(shard).stream, Nonce(1))
}

pub(crate) fn take(shard: u32, taker: &str, term: u64) -> Write {
    let change = LeaseChange::Take { taker: WorkerId::from(taker), term };
    Write::lease(&key(shard), change, Nonce(100 + term))
}

pub(crate) fn join(name: &str) -> Write {
    let (host, reads, lease_time_ms) = ("host".into(), None, None);
    let join = WorkerChange::Join { host, started_ms: 5, reads, lease_time_ms };
    Write::worker(&WorkerId::from(name), join, Nonce(2))
}

/// Performs a write that must be applied.
pub(crate) async fn done<S: LeaseStore>(store: &S, write: &Write) -> Option<LeaseToken> {
    let outcome = store.write(write).await.unwrap();
    assert!(matches!(outcome, WriteOutcome::Done(_)), "{write:?}: {outcome:?}");
    outcome.token()
}

/// Creates a lease that the worker `a` owns.
pub(crate) async fn owned<S: LeaseStore>(store: &S, shard: u32) -> LeaseToken {
    done(store, &create(shard)).await;
    done(store, &take(shard, "a", 0)).await.unwrap()
}

/// Opens a store in a temporary folder that is removed with the test.
pub(crate) fn sqlite() -> (TempDir, SqliteStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("leases.db"), "app").unwrap();
    (folder, store)
}
