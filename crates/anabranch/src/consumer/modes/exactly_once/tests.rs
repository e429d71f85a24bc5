//! Tests of the closure's call and of the commit.
//!
//! The closure is called in the very poll that found the lease held, and never for records that are
//! already stored. A commit is valid only while the call lasts, for one lane at a time, and the row
//! decides.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use crate::consumer::dispatch::resume::Resume;
use crate::consumer::modes::exactly_once::*;
use crate::lease::SqliteStore;
use crate::lease::heartbeat::Heartbeat;
use anabranch_model::hash::HashRange;
use anabranch_model::lease::{HandOver, Lease, LeaseChange, NewLease, Nonce, Write};
use anabranch_model::sequence::SequenceNumber;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::Notify;

fn lease() -> Lease {
    Lease {
        key: LeaseKey::new("s", "shardId-000000000000"),
        owner: Some("me".into()),
        term: 1,
        hand_over: HandOver::None,
        checkpoint: Checkpoint::at(Position::TrimHorizon),
        pending: None,
        parents: vec![],
        children: vec![],
        range: None,
        bytes_per_second: None,
        owner_switches: 0,
        nonce: Nonce(0),
    }
}

fn record(low: u64) -> UserRecord {
    UserRecord {
        sequence: SequenceNumber::from_limbs(0, 0, low).expect("it has few digits"),
        sub: 0,
        aggregated: false,
        partition_key: "key".into(),
        explicit_hash_key: None,
        data: "data".into(),
        arrival_ms: 1,
    }
}

#[tokio::test(start_paused = true)]
async fn the_closure_is_called_in_the_poll_that_found_the_lease_held_though_a_write_is_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, lease) = (Clock::of_runtime(), lease());
    let pulse = Arc::new(Heartbeat::new(10_000, clock.now_ms()));
    let own = lease.token().unwrap();
    let held =
        Arc::new(HeldLease::new(lease.clone(), own, None, pulse, Arc::default(), clock.now_ms()));
    let given = Arc::new(AtomicUsize::new(0));
    let into = Arc::clone(&given);
    let handle = move |batch: TransactionBatch<SqliteStore>| {
        into.fetch_add(batch.len(), Ordering::Relaxed);
        std::future::pending::<Result<(), HandlerError>>()
    };
    let work = ExactlyOnceWork {
        shape: Arc::new(ExactlyOnce { handle, most: 10 }),
        desk: Arc::new(CommitState {
            shard: Arc::new(lease.key.clone()),
            held: Arc::clone(&held),
            store: Arc::new(SqliteStore::open(folder.path().join("leases.db"), "app").unwrap()),
            turn: Arc::default(),
            overtaken: CancellationToken::new(),
            clock,
            chance: Rng::seeded(1),
        }),
    };
    let progress = Progress::new(&Resume::of(&lease.checkpoint, 1));
    let records = [record(1), record(2), record(3)];
    // Returns the number of records passed to the closure after one poll of the call.
    let poll_once = async || {
        let (progress, records) = (&progress, &records);
        let call = HandlerCall {
            lane: 0,
            progress,
            records,
            behind_ms: 0,
            at_end: false,
            reservation: None,
        };
        let mut handling = pin!(work.handle(call));
        poll_fn(|context| Poll::Ready(handling.as_mut().poll(context).is_pending())).await;
        given.swap(0, Ordering::Relaxed)
    };
    let write = held.row().await;
    assert_eq!(poll_once().await, 3, "a write to the row may take all that is left of the lease");
    drop(write);
    let checkpoint = Checkpoint::at(records[1].position());
    assert!(held.update_from_row(&Lease { checkpoint, ..lease.clone() }).await);
    assert_eq!(poll_once().await, 1, "two were stored by a call that was dropped");
}

/// A lease stored in a file, and the state shared by its lanes.
struct Office {
    folder: TempDir,
    desk: Arc<CommitState<SqliteStore>>,
    lease: Lease,
    pool: SqlitePool,
}

impl Office {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("leases.db");
        let store = SqliteStore::open(&file, "app").unwrap();
        store.prepare().await.unwrap();
        let key = LeaseKey::new("s", "shardId-000000000000");
        let new = NewLease {
            shard: key.shard.clone(),
            parents: vec![],
            range: HashRange::ALL,
            checkpoint: Position::TrimHorizon,
        };
        let take = LeaseChange::Take { taker: "me".into(), term: 0 };
        assert!(store.write(&new.create(&key.stream, Nonce(1))).await.unwrap().is_done());
        let taken = store.write(&Write::lease(&key, take, Nonce(2))).await.unwrap();
        let lease = taken.lease().unwrap().clone();
        let clock = Clock::of_runtime();
        let pulse = Arc::new(Heartbeat::new(60_000, clock.now_ms()));
        let (own, now_ms) = (lease.token().unwrap(), clock.now_ms());
        let held =
            Arc::new(HeldLease::new(lease.clone(), own, None, pulse, Arc::default(), now_ms));
        let desk = Arc::new(CommitState {
            shard: Arc::new(key),
            held,
            store: Arc::new(store),
            turn: Arc::default(),
            overtaken: CancellationToken::new(),
            clock,
            chance: Rng::seeded(1),
        });
        let options = SqliteConnectOptions::new().filename(file);
        Self { folder, desk, lease, pool: SqlitePool::connect_with(options).await.unwrap() }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("leases.db")
    }

    /// Returns the position of each lane in the row.
    async fn row(&self) -> Vec<Position> {
        let row = self.desk.store.get(&self.lease.key).await.unwrap().unwrap();
        row.checkpoint.lanes().to_vec()
    }

    /// Runs one call with records of a lane, using this closure.
    async fn handle<F, T>(
        &self,
        progress: &Progress,
        (lane, records): (usize, &[UserRecord]),
        handle: F,
    ) -> Result<(), String>
    where
        F: Fn(TransactionBatch<SqliteStore>) -> T + Send + Sync + 'static,
        T: Future<Output = Result<(), HandlerError>> + Send,
    {
        let shape = Arc::new(ExactlyOnce { handle, most: 10 });
        let work = ExactlyOnceWork { shape, desk: Arc::clone(&self.desk) };
        let call =
            HandlerCall { lane, progress, records, behind_ms: 0, at_end: false, reservation: None };
        work.handle(call).await.map_err(|error| error.to_string())
    }
}

/// Commits a batch, and nothing else.
async fn commit(
    pool: SqlitePool,
    batch: TransactionBatch<SqliteStore>,
) -> Result<(), HandlerError> {
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    batch.commit(&mut transaction).await?;
    Ok(transaction.commit().await?)
}

#[tokio::test]
async fn a_batch_can_be_committed_while_its_call_lasts_and_no_longer() {
    let office = Office::open().await;
    let progress = Progress::new(&Resume::of(&office.lease.checkpoint, 1));
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    let records = [record(1)];
    let handled = office.handle(&progress, (0, &records), move |batch| {
        *keep.lock().unwrap() = Some(batch);
        async { Ok(()) }
    });
    let words = handled.await.unwrap_err();
    assert!(
        words.contains("without a committed transaction that contains batch.commit"),
        "{words}"
    );
    let batch = kept.lock().unwrap().take().unwrap();
    let mut transaction = office.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let late = batch.commit(&mut transaction).await;
    assert!(matches!(late, Err(CommitError::CallReturned { .. })), "{late:?}");
    transaction.rollback().await.unwrap();
    assert_eq!(office.row().await, [Position::TrimHorizon]);
}

#[tokio::test]
async fn a_lane_that_commits_after_another_takes_nothing_of_it_back() {
    let office = Office::open().await;
    let progress = Progress::new(&Resume::of(&office.lease.checkpoint, 2));
    let records = [record(1), record(2)];
    progress.note_dispatched(records[1].position(), [1, 1].into_iter());
    let (called, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let slow = {
        let (pool, called, goes_on) = (office.pool.clone(), called.clone(), goes_on.clone());
        office.handle(&progress, (1, &records[1..]), move |batch| {
            let (pool, called, goes_on) = (pool.clone(), called.clone(), goes_on.clone());
            async move {
                called.notify_one();
                goes_on.notified().await;
                commit(pool, batch).await
            }
        })
    };
    let quick = async {
        // The other lane's call has begun, with the row unchanged.
        called.notified().await;
        let pool = office.pool.clone();
        let call = (0, &records[..1]);
        let done = office.handle(&progress, call, move |batch| commit(pool.clone(), batch)).await;
        goes_on.notify_one();
        done
    };
    assert_eq!(tokio::join!(quick, slow), (Ok(()), Ok(())));
    assert_eq!(office.row().await, records.map(|record| record.position()));
}

#[tokio::test]
async fn one_lane_at_a_time_stands_between_its_commit_and_the_end_of_its_call() {
    let office = Office::open().await;
    let progress = Progress::new(&Resume::of(&office.lease.checkpoint, 2));
    let records = [record(1), record(2)];
    progress.note_dispatched(records[1].position(), [1, 1].into_iter());
    let (committed, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let first = {
        let (pool, committed) = (office.pool.clone(), committed.clone());
        let goes_on = goes_on.clone();
        office.handle(&progress, (0, &records[..1]), move |batch| {
            let (pool, committed) = (pool.clone(), committed.clone());
            let goes_on = goes_on.clone();
            async move {
                let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
                batch.commit(&mut transaction).await?;
                committed.notify_one();
                goes_on.notified().await;
                Ok(transaction.commit().await?)
            }
        })
    };
    let second = async {
        committed.notified().await;
        let pool = office.pool.clone();
        let refused = office.handle(&progress, (1, &records[1..]), move |batch| {
            let pool = pool.clone();
            async move {
                // A transaction that reads first: no other transaction may begin to write.
                let mut transaction = pool.begin().await?;
                Ok(batch.commit(&mut transaction).await?)
            }
        });
        let refused = refused.await;
        goes_on.notify_one();
        refused
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first, Ok(()));
    let words = second.unwrap_err();
    assert!(words.contains("the transaction of another lane did not end"), "{words}");
    assert_eq!(office.row().await, [records[0].position(), Position::TrimHorizon]);
}

#[tokio::test]
async fn a_row_that_cant_be_read_back_is_asked_for_until_it_can() {
    let office = Office::open().await;
    let progress = Progress::new(&Resume::of(&office.lease.checkpoint, 1));
    let (pool, file) = (office.pool.clone(), office.file());
    let aside = file.with_extension("aside");
    let (from, to) = (file.clone(), aside.clone());
    let hidden = Arc::new(Notify::new());
    let hides = hidden.clone();
    let records = [record(1)];
    let handled = office.handle(&progress, (0, &records), move |batch| {
        let (pool, from, to) = (pool.clone(), from.clone(), to.clone());
        let hides = hides.clone();
        async move {
            commit(pool, batch).await?;
            std::fs::rename(from, to)?;
            hides.notify_one();
            // The answer to COMMIT was lost.
            Err("no answer".into())
        }
    });
    let back = async {
        hidden.notified().await;
        tokio::time::sleep(Duration::from_millis(3 * AGAIN_MS)).await;
        std::fs::rename(aside, file).unwrap();
    };
    let (handled, ()) = tokio::join!(handled, back);
    assert_eq!(handled, Ok(()), "the row says that the batch is stored");
    assert_eq!(office.row().await, [record(1).position()]);
}

#[tokio::test]
async fn a_batch_that_was_stored_after_all_is_not_stored_again() {
    let office = Office::open().await;
    let progress = Progress::new(&Resume::of(&office.lease.checkpoint, 1));
    let records = [record(1), record(2)];
    let (pool, desk) = (office.pool.clone(), Arc::clone(&office.desk));
    let stored = Checkpoint::at(records[0].position());
    let handled = office.handle(&progress, (0, &records), move |batch| {
        let (pool, desk, stored) = (pool.clone(), Arc::clone(&desk), stored.clone());
        async move {
            // The COMMIT of the earlier call lands, and another lane reads the row back.
            let (hold, nonce) = (desk.held.row().await.hold.clone(), Nonce(7));
            let mut late = pool.begin_with("BEGIN IMMEDIATE").await?;
            let before = Checkpoint::at(Position::TrimHorizon);
            let moved = desk.store.checkpoint_in(&mut late, &hold, &before, &stored, nonce).await?;
            assert_eq!(moved, TransactionCheckpoint::Written);
            late.commit().await?;
            let row = desk.store.get(&desk.shard).await?.unwrap();
            assert!(desk.held.update_from_row(&row).await);
            commit(pool, batch).await
        }
    });
    let words = Box::pin(handled).await.unwrap_err();
    assert!(words.contains("roll the transaction back"), "{words}");
    assert_eq!(office.row().await, [records[0].position()], "the rest of it comes again");
}

/// A call with two lanes was dropped, and its transaction was stored after the reading had
/// restarted with one lane. It did records 1 and 9, and perhaps some in between.
async fn overtaken(records: &[u64]) {
    let office = Office::open().await;
    let hold = office.desk.held.row().await.hold.clone();
    let before = office.lease.checkpoint.clone();
    let late = Checkpoint::of_lanes(vec![record(9).position(), before.lowest()]).unwrap();
    let mut transaction = office.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let stored = office.desk.store.checkpoint_in(&mut transaction, &hold, &before, &late, Nonce(7));
    assert_eq!(stored.await.unwrap(), TransactionCheckpoint::Written);
    transaction.commit().await.unwrap();
    let progress = Progress::new(&Resume::of(&office.lease.checkpoint, 1));
    let batch: Vec<_> = records.iter().map(|low| record(*low)).collect();
    let call = || {
        let pool = office.pool.clone();
        office.handle(&progress, (0, &batch), move |batch| commit(pool.clone(), batch))
    };
    let words = call().await.unwrap_err();
    assert!(words.contains("roll the transaction back"), "{words}");
    assert!(!office.desk.overtaken.is_cancelled(), "the row is read first");
    let words = call().await.unwrap_err();
    assert!(words.contains("is before the current one"), "{words}");
    assert!(office.desk.overtaken.is_cancelled());
    assert_eq!(office.row().await, late.lanes(), "nothing is stored twice");
}

#[tokio::test]
async fn lanes_that_were_overtaken_by_another_number_of_them_give_the_shard_up() {
    overtaken(&[1]).await;
    overtaken(&[1, 9, 10]).await;
}
