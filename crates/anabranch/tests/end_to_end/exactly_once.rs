//! Effects exactly once: with processes that are killed repeatedly, with transactions that are
//! rolled back or whose reply is lost, and with an owner that freezes inside of one.

use crate::book::{EffectsTable, PostgresEffects, SqliteEffects};
use crate::fleet::{KEYS, ProcessFleet};
use crate::network::Transport;
use crate::postgres_server::Server;
use anabranch::consumer::{Consumer, HandlerError, TransactionBatch};
use anabranch::lease::PostgresStore;
use anabranch::stream::{AwsKinesis, LocalKinesis};
use anabranch_local::op::put_records::{Payload, PutRecordsEntry};
use anabranch_local::op::{create_stream, put_record};
use anabranch_local::{Engine, EngineOptions, StreamRef};
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The address of the effects table; set only in the child's environment.
const BOOK: &str = "ANABRANCH_TEST_BOOK";

/// End of the transaction of one handler call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TransactionEnd {
    /// It commits.
    Commit,
    /// It rolls back, and returns an error.
    RollBack,
    /// It rolls back, and returns `Ok`.
    RollBackQuietly,
    /// It commits, and returns an error, as after a lost reply.
    LoseTheAnswer,
    /// It never calls `batch.commit`.
    ForgetToCommit,
    /// It panics before it commits.
    Panic,
    /// It commits, and hangs until it is dropped.
    Hang,
}

/// Outcomes of the next handler calls. All later calls commit.
#[derive(Clone)]
struct HandlerScript(Arc<Mutex<Vec<TransactionEnd>>>);

impl HandlerScript {
    fn of(calls: &[TransactionEnd]) -> Self {
        Self(Arc::new(Mutex::new(calls.to_vec())))
    }

    fn next(&self) -> TransactionEnd {
        let mut calls = self.0.lock().unwrap();
        if calls.is_empty() { TransactionEnd::Commit } else { calls.remove(0) }
    }

    fn is_over(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}

/// Adds each record to the effects table, and ends the transaction as the script says.
async fn handle<B: EffectsTable>(
    book: B,
    script: HandlerScript,
    batch: TransactionBatch<B::Store>,
) -> Result<(), HandlerError> {
    let then = script.next();
    let mut entry = book.begin().await?;
    for record in batch.iter() {
        let number = std::str::from_utf8(&record.data)?.parse()?;
        B::note(&mut entry, record.partition_key.as_str(), number).await?;
    }
    assert!(then != TransactionEnd::Panic, "on purpose");
    if then != TransactionEnd::ForgetToCommit {
        batch.commit(&mut entry).await?;
    }
    match then {
        TransactionEnd::RollBack => {
            entry.rollback().await?;
            Err("rolled back on purpose".into())
        }
        TransactionEnd::RollBackQuietly | TransactionEnd::ForgetToCommit => {
            Ok(entry.rollback().await?)
        }
        TransactionEnd::LoseTheAnswer => {
            entry.commit().await?;
            Err("no answer to COMMIT".into())
        }
        TransactionEnd::Hang => {
            entry.commit().await?;
            std::future::pending().await
        }
        TransactionEnd::Commit | TransactionEnd::Panic => Ok(entry.commit().await?),
    }
}

async fn run<B: EffectsTable>(
    book: B,
    script: HandlerScript,
    kinesis: AwsKinesis,
    lanes: usize,
    stop: CancellationToken,
) {
    let store = book.store();
    Consumer::new("orders", "exactly-once")
        .with_kinesis(kinesis)
        .with_leases(store)
        .with_concurrency(lanes)
        .with_settings(|settings| settings.lease_time = Duration::from_secs(3))
        .exactly_once(7, move |batch| handle(book.clone(), script.clone(), batch))
        .run_until(async move { stop.cancelled().await })
        .await
        .unwrap();
}

/// Runs in the child only: adds each record to the effects table until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Ok(address) = std::env::var(BOOK) else { return };
    let kinesis = anabranch::stream::aws::from_env().await.unwrap();
    let (script, stop) = (HandlerScript::of(&[]), CancellationToken::new());
    if address.starts_with("postgres") {
        Box::pin(run(PostgresEffects::open(&address).await, script, kinesis, 2, stop)).await;
    } else {
        Box::pin(run(SqliteEffects::open(&address).await, script, kinesis, 2, stop)).await;
    }
}

/// Kills one of two workers repeatedly while records arrive and the stream is resharded.
async fn kill_loop(book: impl EffectsTable, address: String) {
    let mut fleet = ProcessFleet::start(Transport::Http, 2).await;
    let names = ["a", "b"];
    let spawn = |fleet: &mut ProcessFleet, name| {
        fleet.spawn_test(name, "exactly_once::child", &[(BOOK, address.clone())]);
    };
    for name in names {
        spawn(&mut fleet, name);
    }
    for round in 0..6 {
        fleet.rounds(8).await;
        let name = names[round % 2];
        fleet.signal(name, "KILL");
        fleet.exit_of(name);
        match round {
            1 => fleet.split(0).await,
            3 => fleet.merge(1).await,
            _ => {}
        }
        fleet.rounds(2).await;
        spawn(&mut fleet, name);
    }
    book.until(60 * KEYS).await;
    for name in names {
        fleet.signal(name, "KILL");
        assert_eq!(fleet.exit_of(name), None, "it was killed");
    }
    book.check(KEYS, 60).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_postgres_each_effect_is_stored_once_though_workers_are_killed_again_and_again() {
    let Some(server) = Server::shared() else { return };
    let book = PostgresEffects::new(&server).await;
    let address = book.address();
    Box::pin(kill_loop(book, address)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_sqlite_each_effect_is_stored_once_though_workers_are_killed_again_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let book = SqliteEffects::new(folder.path()).await;
    let address = book.address();
    Box::pin(kill_loop(book, address)).await;
}

/// Runs transactions with every kind of end, with one lane and with several.
async fn in_every_way<B: EffectsTable>(book: B, lanes: usize) {
    use TransactionEnd::{Commit, ForgetToCommit, LoseTheAnswer, Panic, RollBack, RollBackQuietly};
    let mut fleet = ProcessFleet::start(Transport::Http, 1).await;
    let calls = [
        Commit,
        RollBack,
        RollBack,
        LoseTheAnswer,
        RollBackQuietly,
        LoseTheAnswer,
        ForgetToCommit,
        Panic,
        LoseTheAnswer,
        Commit,
    ];
    let (script, stop) = (HandlerScript::of(&calls), CancellationToken::new());
    let mut worker = JoinSet::new();
    worker.spawn(run(book.clone(), script.clone(), fleet.kinesis(), lanes, stop.clone()));
    fleet.rounds(10).await;
    book.until(10 * KEYS).await;
    assert!(script.is_over(), "every way was tried");
    stop.cancel();
    worker.join_next().await.unwrap().unwrap();
    // Another worker continues behind it, with another number of lanes.
    let (script, stop) = (HandlerScript::of(&[LoseTheAnswer, RollBack]), CancellationToken::new());
    worker.spawn(run(book.clone(), script, fleet.kinesis(), 3 - lanes.min(2), stop.clone()));
    fleet.rounds(5).await;
    book.until(15 * KEYS).await;
    stop.cancel();
    worker.join_next().await.unwrap().unwrap();
    book.check(KEYS, 15).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_postgres_a_batch_is_done_if_its_transaction_was_stored_and_comes_again_if_not() {
    let Some(server) = Server::shared() else { return };
    for lanes in [1, 4] {
        Box::pin(in_every_way(PostgresEffects::new(&server).await, lanes)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_sqlite_a_batch_is_done_if_its_transaction_was_stored_and_comes_again_if_not() {
    let folder = tempfile::tempdir().unwrap();
    Box::pin(in_every_way(SqliteEffects::new(folder.path()).await, 1)).await;
}

/// Puts records of one key, with these numbers, into a stream in process.
fn put(engine: &Engine, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let data = number.to_string();
        let entry = PutRecordsEntry {
            partition_key: Cow::Borrowed("key"),
            explicit_hash_key: None,
            data: Payload::Raw(data.as_bytes()),
        };
        let (stream, sequence_number_for_ordering) = (StreamRef::named("orders"), None);
        let request = put_record::Request { stream, entry, sequence_number_for_ordering };
        engine.put_record(&request).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_was_stored_by_a_call_that_was_dropped_is_not_stored_again_in_a_larger_one() {
    let folder = tempfile::tempdir().unwrap();
    let book = SqliteEffects::new(folder.path()).await;
    let engine = Arc::new(Engine::new(EngineOptions::instant(), anabranch_local::Clock::system()));
    let request = create_stream::Request {
        stream_name: Some("orders".to_owned()),
        shard_count: Some(1),
        ..Default::default()
    };
    engine.create_stream(&request).unwrap();
    put(&engine, 0..5);
    let (into, script) = (book.clone(), HandlerScript::of(&[TransactionEnd::Hang]));
    let consumer = Consumer::new("orders", "exactly-once")
        .with_kinesis(LocalKinesis::new(Arc::clone(&engine)))
        .with_leases(book.store())
        .with_settings(|settings| {
            settings.watchdog.handler_ms = 1_000;
            settings.watchdog.drop_handlers = true;
        })
        .exactly_once(100, move |batch| handle(into.clone(), script.clone(), batch));
    let stop = CancellationToken::new();
    let asked = stop.clone();
    let mut worker = JoinSet::new();
    worker.spawn(consumer.run_until(async move { asked.cancelled().await }));
    book.until(5).await;
    // The next read returns these together with those that the dropped call has stored.
    put(&engine, 5..8);
    book.until(8).await;
    stop.cancel();
    worker.join_next().await.unwrap().unwrap().unwrap();
    book.check(1, 8).await;
}

/// Controls an owner that is frozen between `batch.commit` and `COMMIT`.
#[derive(Default)]
struct FreezePoint {
    /// True once it is frozen.
    stands: AtomicBool,
    /// Set to true to let it continue.
    goes_on: AtomicBool,
    /// True if its transaction was committed afterwards.
    stored: Mutex<Option<bool>>,
}

impl FreezePoint {
    async fn handle(
        &self,
        book: PostgresEffects,
        batch: TransactionBatch<PostgresStore>,
    ) -> Result<(), HandlerError> {
        let mut entry = book.begin().await?;
        PostgresEffects::note(&mut entry, "of a frozen owner", 0).await?;
        batch.commit(&mut entry).await?;
        self.stands.store(true, Ordering::SeqCst);
        while !self.goes_on.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let stored = entry.commit().await;
        *self.stored.lock().unwrap() = Some(stored.is_ok());
        Ok(stored?)
    }

    /// Runs an owner on a thread of its own, which its handler blocks: its heartbeats, its fetches
    /// and everything else stop, as in a stopped process.
    fn run(self: Arc<Self>, url: &str, kinesis: AwsKinesis) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let book = PostgresEffects::open(url).await;
            let (store, freeze) = (book.store(), Arc::clone(&self));
            let consumer = Consumer::new("orders", "exactly-once")
                .with_kinesis(kinesis)
                .with_leases(store)
                .with_settings(|settings| settings.lease_time = Duration::from_secs(3))
                .exactly_once(7, move |batch| {
                    let (freeze, book) = (Arc::clone(&freeze), book.clone());
                    async move { freeze.handle(book, batch).await }
                });
            let judged = async {
                while self.stored.lock().unwrap().is_none() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            // Its leases are lost. The result may or may not say so, depending on when the stop
            // comes.
            let _: Result<(), _> = consumer.run_until(judged).await;
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_frozen_inside_its_transaction_keeps_nobody_from_its_shard() {
    let Some(server) = Server::shared() else { return };
    let book = PostgresEffects::new(&server).await;
    let mut fleet = ProcessFleet::start(Transport::Http, 1).await;
    fleet.rounds(2).await;
    let freeze = Arc::new(FreezePoint::default());
    let (frozen, url, kinesis) = (Arc::clone(&freeze), book.address(), fleet.kinesis());
    let owner = std::thread::spawn(move || frozen.run(&url, kinesis));
    while !freeze.stands.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (script, stop) = (HandlerScript::of(&[]), CancellationToken::new());
    let mut worker = JoinSet::new();
    worker.spawn(run(book.clone(), script, fleet.kinesis(), 1, stop.clone()));
    // The frozen owner never continues before the other has done everything.
    book.until(2 * KEYS).await;
    freeze.goes_on.store(true, Ordering::SeqCst);
    tokio::task::spawn_blocking(move || owner.join().unwrap()).await.unwrap();
    assert_eq!(*freeze.stored.lock().unwrap(), Some(false), "its transaction was ended");
    stop.cancel();
    worker.join_next().await.unwrap().unwrap();
    book.check(KEYS, 2).await;
}
