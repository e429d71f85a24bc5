//! Writers, relays and servers that fail at once, and an oracle over the delivered records.
//!
//! The writers of one key are serialized by a row lock. Many take their transaction id long before
//! they get that lock, some roll back, and all delay their commit.

use crate::child;
use crate::postgres_server::Server;
use crate::stage::ProducerFixture;
use crate::world::AppSession;
use anabranch_local::Local;
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::Operation;
use anabranch_outbox::{Database, Envelope, OutboxTable};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection, Executor};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

const KEYS: u64 = 8;
const WRITERS: u64 = 12;
const KILLS: u32 = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_committed_row_comes_in_order_and_no_other_does_through_kills_of_everything() {
    let Some(server) = Server::start() else { return };
    let server = Arc::new(server);
    let url = server.fresh_database();
    let table = OutboxTable::named("outbox").unwrap();
    anabranch_outbox::init(&Database::from_url(&url).unwrap(), &table, false).await.unwrap();
    let mut session = connect(&url).await.unwrap();
    session
        .run(&format!(
            "CREATE TABLE counter (key text PRIMARY KEY, number bigint NOT NULL); \
             CREATE TABLE truth (key text, number bigint, nonce text); \
             INSERT INTO counter SELECT 'k' || n, 0 FROM generate_series(0, {}) n",
            KEYS - 1
        ))
        .await;
    let stage = ProducerFixture::new(3);
    let local = Local::builder().with_engine(Arc::clone(&stage.engine)).start().await.unwrap();
    stage.fault(Operation::PutRecords, FaultEffect::DropReply, 0.05);
    stage.fault(Operation::PutRecords, FaultEffect::ThrottleEntries, 0.05);

    let over = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for seed in 0..WRITERS {
        writers.spawn(write(url.clone(), seed, Arc::clone(&over)));
    }
    let mut chance = fastrand::Rng::with_seed(7);
    let mut relays = [Some(spawn(&url, &local)), Some(spawn(&url, &local))];
    for kill in 0..KILLS {
        tokio::time::sleep(Duration::from_millis(chance.u64(500..1_500))).await;
        if kill == KILLS / 2 {
            server.kill();
            let again = Arc::clone(&server);
            tokio::task::spawn_blocking(move || again.restart()).await.unwrap();
        } else {
            let relay = &mut relays[chance.usize(..2)];
            end(relay.take());
            *relay = Some(spawn(&url, &local));
        }
    }
    over.store(true, Ordering::Relaxed);
    while writers.join_next().await.is_some() {}
    // A relay that found no server at its start has ended.
    let last = spawn(&url, &local);
    let mut session = connect(&url).await.unwrap();
    let mut looks = 0;
    while session.number("SELECT count(*) FROM outbox").await > 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        looks += 1;
        assert!(looks < 1_200, "rows stay in the table");
    }
    relays.into_iter().chain([Some(last)]).for_each(end);
    check(&mut session, &stage).await;
}

fn spawn(url: &str, local: &Local) -> Child {
    child::spawn(url, local, None)
}

/// Kills a relay as `kill -9` does.
fn end(relay: Option<Child>) {
    if let Some(mut relay) = relay {
        relay.kill().unwrap();
        relay.wait().unwrap();
    }
}

async fn connect(url: &str) -> Result<AppSession, sqlx::Error> {
    let options: PgConnectOptions = url.parse()?;
    Ok(AppSession(PgConnection::connect_with(&options).await?))
}

/// Writes until stopped. A server crash costs only the current transaction.
async fn write(url: String, seed: u64, over: Arc<AtomicBool>) {
    let mut chance = fastrand::Rng::with_seed(seed);
    while !over.load(Ordering::Relaxed) {
        let Ok(mut session) = connect(&url).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        while !over.load(Ordering::Relaxed) {
            if Box::pin(transaction(&mut session, &mut chance)).await.is_err() {
                break;
            }
        }
    }
}

async fn transaction(
    session: &mut AppSession,
    chance: &mut fastrand::Rng,
) -> Result<(), sqlx::Error> {
    let key = format!("k{}", chance.u64(..KEYS));
    let mut run = async |sql: String| session.0.execute(AssertSqlSafe(sql)).await.map(drop);
    run("BEGIN".to_owned()).await?;
    if chance.bool() {
        run("SELECT pg_current_xact_id()".to_owned()).await?;
        tokio::time::sleep(Duration::from_millis(chance.u64(..30))).await;
    }
    run(format!("UPDATE counter SET number = number + 1 WHERE key = '{key}'")).await?;
    for _ in 0..chance.u64(1..4) {
        let nonce = chance.u64(..);
        run(format!(
            "WITH n AS (INSERT INTO truth SELECT key, number, '{nonce}' FROM counter WHERE key = '{key}') \
             INSERT INTO outbox (partition_key, data) \
             SELECT key, (number || ':{nonce}')::bytea FROM counter WHERE key = '{key}'"
        ))
        .await?;
    }
    tokio::time::sleep(Duration::from_millis(chance.u64(..15))).await;
    run(if chance.u64(..5) == 0 { "ROLLBACK".to_owned() } else { "COMMIT".to_owned() }).await
}

/// Checks that the first deliveries of each key are the committed rows, in the order of the counter
/// that the row lock protects.
async fn check(session: &mut AppSession, stage: &ProducerFixture) {
    let committed: Vec<(String, i64, String)> =
        sqlx::query_as("SELECT key, number, nonce FROM truth")
            .fetch_all(&mut session.0)
            .await
            .unwrap();
    let committed: BTreeSet<(String, i64, String)> = committed.into_iter().collect();
    let mut seen = BTreeSet::new();
    let mut last: BTreeMap<String, i64> = BTreeMap::new();
    let records = stage.read_all().await;
    for record in &records {
        let key = record.partition_key.to_string();
        let data = Envelope::read(&record.data).unwrap().data;
        let text = String::from_utf8(data.to_vec()).unwrap();
        let (number, nonce) = text.split_once(':').unwrap();
        let row = (key.clone(), number.parse().unwrap(), nonce.to_owned());
        if !seen.insert(row.clone()) {
            continue;
        }
        let before = last.insert(key.clone(), row.1).unwrap_or(0);
        assert!(before <= row.1, "{key}: {} came after {before}", row.1);
    }
    let missing: Vec<_> = committed.difference(&seen).collect();
    let extra: Vec<_> = seen.difference(&committed).collect();
    assert!(missing.is_empty(), "{} rows are missing: {missing:?}", missing.len());
    assert!(extra.is_empty(), "{} rows were never committed: {extra:?}", extra.len());
    assert!(committed.len() > 300, "only {} rows were written", committed.len());
    println!("{} rows, {} records", committed.len(), records.len());
}
