//! A fixture with a stream of its own on the store under test, and the same stream on the pure
//! table.

use crate::lease::{LeaseStore, StorePoll};
use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{
    Checkpoint, Layout, Lease, LeaseChange, LeaseKey, LeaseTable, LeaseToken, NewLease, Nonce,
    Resolution, StoredRow, WorkerChange, WorkerId, Write, WriteOutcome, resolve,
};
use anabranch_model::position::Position;
use anabranch_model::sequence::SequenceNumber;

/// The store under test, and the rows that it should hold.
pub(super) struct StoreFixture<'a, S> {
    store: &'a S,
    /// The same rows by the pure rules.
    pub(super) table: LeaseTable,
    /// A stream that no other fixture uses.
    pub(super) stream: StreamName,
    /// The nonce of the last write made here.
    nonce: u64,
    /// The poll after the last write made here. There are no other writers meanwhile.
    looked: Option<StorePoll>,
}

impl<'a, S: LeaseStore> StoreFixture<'a, S> {
    /// Creates a fixture without rows. `name` distinguishes it from others on the same store.
    pub(super) fn new(store: &'a S, name: impl Into<StreamName>) -> Self {
        Self {
            store,
            table: LeaseTable::new(store.layout()),
            stream: name.into(),
            nonce: 0,
            looked: None,
        }
    }

    /// Creates a fixture with one lease that the worker `a` owns.
    pub(super) async fn owned(store: &'a S, name: impl Into<StreamName>) -> (Self, LeaseToken) {
        let mut scene = Self::new(store, name);
        scene.join("a").await;
        scene.join("b").await;
        scene.create(0).await;
        let hold = scene.take("a", 0).await;
        (scene, hold)
    }

    pub(super) fn layout(&self) -> Layout {
        self.table.layout()
    }

    pub(super) fn is_native(&self) -> bool {
        self.layout() == Layout::Native
    }

    /// Returns the id of a worker of this fixture. The worker supports hand-overs.
    pub(super) fn id(&self, name: &str) -> WorkerId {
        let id = format!("{name}@{}", self.stream);
        if self.is_native() { id.into() } else { WorkerId::of_kcl_join(&id, 1, 10_000) }
    }

    pub(super) fn key(&self, shard: u32) -> LeaseKey {
        LeaseKey { stream: self.stream.clone(), shard: ShardId::from_index(shard) }
    }

    pub(super) fn nonce(&mut self) -> Nonce {
        self.nonce += 1;
        Nonce(self.nonce)
    }

    /// Returns the lease as it should be.
    pub(super) fn lease(&self, shard: u32) -> &Lease {
        self.table.lease(&self.key(shard)).expect("the scene has made this lease")
    }

    /// Applies a write to both sides. They must agree on the outcome, on the row and on whether the
    /// plan has changed.
    pub(super) async fn write(&mut self, write: &Write) -> WriteOutcome {
        let got = self.write_only(write).await;
        let row = self.store.read_back(write).await.expect("the store answers");
        assert_eq!(row, self.expected_row(write), "the row after {write:?}");
        got
    }

    /// Does the same, but does not read the row again.
    pub(super) async fn write_only(&mut self, write: &Write) -> WriteOutcome {
        let before = match self.looked.take() {
            Some(look) => look,
            None => self.poll().await,
        };
        let expected = self.table.apply(write);
        let got = self.store.write(write).await.expect("the store answers");
        match (&expected, &got) {
            // A store need not return the row with a refusal, but a returned row must be correct.
            (
                WriteOutcome::Refused { why: expected, now: row },
                WriteOutcome::Refused { why: got, now },
            ) => {
                assert_eq!(got, expected, "{write:?}");
                assert!(now.is_none() || now == row, "{write:?}: {now:?} is not {row:?}");
            }
            _ => assert_eq!(got, expected, "{write:?}"),
        }
        let moves = self.is_native() && expected.is_done() && write.changes_plan();
        let after = self.poll().await;
        assert_eq!(after.version != before.version, moves, "the version after {write:?}");
        self.looked = Some(after);
        got
    }

    /// Applies a write that must succeed. Returns the token that the lease's owner presents from
    /// now on.
    pub(super) async fn done(&mut self, write: &Write) -> Option<LeaseToken> {
        let outcome = self.write(write).await;
        assert!(outcome.is_done(), "{write:?}: {outcome:?}");
        outcome.token()
    }

    /// Applies a write that must be refused.
    pub(super) async fn refused(&mut self, write: &Write) {
        let outcome = self.write(write).await;
        assert!(outcome.refusal().is_some(), "{write:?} was applied: {outcome:?}");
    }

    /// Resolves a write by reading its row back from the store.
    pub(super) async fn resolve(&self, write: &Write) -> Resolution {
        let row = self.store.read_back(write).await.expect("the store answers");
        resolve(self.layout(), write, &row)
    }

    /// Checks that all leases and workers of the fixture match the pure table.
    pub(super) async fn compare(&self) {
        let got = self.store.list(&self.stream).await.expect("the store answers").rows;
        let expected: Vec<Lease> = self.table.leases(&self.stream).cloned().collect();
        assert_eq!(got, expected, "the leases of {}", self.stream);
        let look = self.poll().await;
        let suffix = format!("@{}", self.stream);
        let mine = look.workers.into_iter().filter(|worker| worker.id.as_str().ends_with(&suffix));
        let expected: Vec<_> = self.table.workers().cloned().collect();
        assert_eq!(mine.collect::<Vec<_>>(), expected, "the workers of {}", self.stream);
    }

    /// Removes the workers of the fixture, which every later poll of the store would show.
    pub(super) async fn tidy(mut self) {
        let held: Vec<LeaseToken> =
            self.table.leases(&self.stream).filter_map(Lease::token).collect();
        let mut writes = Vec::new();
        let native = self.is_native();
        for hold in held.iter().filter(|_| native) {
            writes.push(hold.release(self.nonce()));
        }
        for worker in self.table.workers().cloned().collect::<Vec<_>>() {
            if worker.is_alive() {
                let fence = WorkerChange::Fence { counter: worker.counter };
                writes.push(Write::worker(&worker.id, fence, self.nonce()));
            }
            writes.push(Write::worker(&worker.id, WorkerChange::Delete, self.nonce()));
        }
        for write in &writes {
            let gone = self.store.write(write).await.expect("the store answers");
            assert!(gone.is_done(), "{write:?}: {gone:?}");
        }
    }

    pub(super) async fn create(&mut self, shard: u32) {
        let write = self.new_lease(shard);
        self.done(&write).await;
    }

    pub(super) fn new_lease(&mut self, shard: u32) -> Write {
        let range = HashRange::new(HashKey(0), HashKey(u128::MAX)).expect("0 is the lowest key");
        let new = NewLease {
            shard: self.key(shard).shard,
            parents: vec!["shardId-000000000098".into(), "shardId-000000000099".into()],
            range,
            checkpoint: Position::TrimHorizon,
        };
        let nonce = self.nonce();
        new.create(&self.stream, nonce)
    }

    /// Joins a worker, where the layout has workers.
    pub(super) async fn join(&mut self, name: &str) {
        if self.is_native() {
            let join = WorkerChange::Join {
                host: "host".into(),
                started_ms: 1_700_000_000_000,
                reads: None,
                lease_time_ms: Some(10_000),
            };
            let write = Write::worker(&self.id(name), join, self.nonce());
            self.done(&write).await;
        }
    }

    /// Takes the lease at its current term.
    pub(super) async fn take(&mut self, name: &str, shard: u32) -> LeaseToken {
        let change = LeaseChange::Take { taker: self.id(name), term: self.lease(shard).term };
        let write = Write::lease(&self.key(shard), change, self.nonce());
        self.done(&write).await.expect("a lease that was taken has an owner")
    }

    async fn poll(&self) -> StorePoll {
        self.store.poll().await.expect("the store answers")
    }

    fn expected_row(&self, write: &Write) -> StoredRow {
        match write {
            Write::Lease { key, .. } => StoredRow::of_lease(self.table.lease(key)),
            Write::Worker { id, .. } => StoredRow::of_worker(self.table.worker(id)),
            Write::Stream { stream, .. } => {
                StoredRow::of_stream(self.table.application().streams.get(stream))
            }
        }
    }
}

/// Returns the checkpoint at a sequence number of full length.
pub(super) fn at(low: u64) -> Checkpoint {
    let sequence =
        SequenceNumber::from_limbs(495_903_382_714_902_566, 8_559_692_538_361_571_095, low)
            .expect("the limbs are small enough");
    Checkpoint::at(Position::At { sequence, sub: low % 3 })
}

pub(super) fn start() -> Checkpoint {
    Checkpoint::at(Position::TrimHorizon)
}
