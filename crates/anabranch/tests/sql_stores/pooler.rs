//! Behind `PgBouncer` in transaction mode everything but notifications works, without any setting.

use crate::fleet::share_and_hand_over;
use crate::postgres_server::bouncer::Bouncer;
use crate::steps::{create, done};
use crate::warnings::Warnings;
use anabranch::consumer::{Consumer, HandlerError, TransactionBatch};
use anabranch::lease::{LeaseStore, PostgresStore, conformance};
use anabranch::stream::LocalKinesis;
use anabranch_local::op::put_records::{Payload, PutRecordsEntry};
use anabranch_local::op::{create_stream, put_record};
use anabranch_local::{Engine, EngineOptions, StreamRef};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Row};
use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Without the pooler's support for prepared statements, and with it.
const MAX_PREPARED_STATEMENTS: [u32; 2] = [0, 200];

/// Number of polls that must leave nothing behind.
const POLLS: u32 = 10_000;

const RECORDS: usize = 500;

/// Connection options without parameters that `PgBouncer` rejects.
fn options(url: &str) -> PgConnectOptions {
    PgConnectOptions::from_str(url).unwrap().extra_float_digits(None)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_suite_passes_behind_a_pooler_in_transaction_mode() {
    for statements in MAX_PREPARED_STATEMENTS {
        let Some(bouncer) = Bouncer::start(statements) else { continue };
        let url = bouncer.before(&bouncer.server.fresh_database());
        let store = PostgresStore::connect(&url, "app").unwrap();
        conformance::run(store.with_connections(16).unwrap()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fleet_behind_a_pooler_shares_its_leases_and_hands_them_over() {
    for statements in MAX_PREPARED_STATEMENTS {
        let Some(bouncer) = Bouncer::start(statements) else { continue };
        let url = bouncer.before(&bouncer.server.fresh_database());
        let stores = [(), ()].map(|()| PostgresStore::connect(&url, "app").unwrap());
        Box::pin(share_and_hand_over(stores)).await;
    }
}

/// Returns the server process of a connection, and its number of prepared statements.
async fn prepared(connection: &mut PgConnection) -> (i32, i64) {
    let sql = "SELECT pg_backend_pid(), count(*) FROM pg_prepared_statements";
    let row = sqlx::raw_sql(sql).fetch_one(connection).await.unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn polls_leave_no_prepared_statement_behind() {
    for statements in MAX_PREPARED_STATEMENTS {
        let Some(bouncer) = Bouncer::start(statements) else { continue };
        let url = bouncer.before(&bouncer.server.fresh_database());
        let store = PostgresStore::connect(&url, "app").unwrap();
        store.prepare().await.unwrap();
        done(&store, &create(0)).await;
        for _ in 0..POLLS {
            assert_eq!(store.poll().await.unwrap().version, Some(1));
        }
        // Two concurrent transactions occupy both connections that the pooler has.
        let mut seen = Vec::new();
        let mut connections = Vec::new();
        for _ in 0..2 {
            let mut connection = PgConnection::connect_with(&options(&url)).await.unwrap();
            sqlx::raw_sql("BEGIN").execute(&mut connection).await.unwrap();
            seen.push(prepared(&mut connection).await);
            connections.push(connection);
        }
        assert_ne!(seen[0].0, seen[1].0);
        assert_eq!((seen[0].1, seen[1].1), (0, 0), "max_prepared_statements = {statements}");
    }
}

fn stream_with_records() -> Arc<Engine> {
    let engine = Arc::new(Engine::new(EngineOptions::instant(), anabranch_local::Clock::system()));
    let request = create_stream::Request {
        stream_name: Some("orders".to_owned()),
        shard_count: Some(4),
        ..Default::default()
    };
    engine.create_stream(&request).unwrap();
    for number in 0..RECORDS {
        let (key, data) = (format!("key-{}", number % 16), number.to_string());
        let entry = PutRecordsEntry {
            partition_key: Cow::Borrowed(&key),
            explicit_hash_key: None,
            data: Payload::Raw(data.as_bytes()),
        };
        let (stream, sequence_number_for_ordering) = (StreamRef::named("orders"), None);
        let request = put_record::Request { stream, entry, sequence_number_for_ordering };
        engine.put_record(&request).unwrap();
    }
    engine
}

/// Stores the effects, every other one with a parameter.
async fn note(pool: PgPool, batch: TransactionBatch<PostgresStore>) -> Result<(), HandlerError> {
    let mut transaction = pool.begin().await?;
    for record in &batch.records {
        let number: i64 = std::str::from_utf8(&record.data)?.parse()?;
        if number % 2 == 0 {
            let insert = sqlx::query("INSERT INTO effect VALUES ($1)").bind(number);
            insert.persistent(false).execute(&mut *transaction).await?;
        } else {
            let sql = AssertSqlSafe(format!("INSERT INTO effect VALUES ({number})"));
            sqlx::raw_sql(sql).execute(&mut *transaction).await?;
        }
    }
    batch.commit(&mut transaction).await?;
    Ok(transaction.commit().await?)
}

async fn effects(pool: &PgPool) -> Vec<i64> {
    let rows = sqlx::raw_sql("SELECT number FROM effect ORDER BY number").fetch_all(pool).await;
    rows.unwrap().iter().map(|row| row.get(0)).collect()
}

/// A worker with leases, heartbeats and checkpoints in its handlers' transactions.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_consumer_behind_a_pooler_stores_each_effect_once() {
    for statements in MAX_PREPARED_STATEMENTS {
        let Some(bouncer) = Bouncer::start(statements) else { continue };
        let url = bouncer.before(&bouncer.server.fresh_database());
        let pool = PgPoolOptions::new().max_connections(4).connect_with(options(&url));
        let pool = pool.await.unwrap();
        let table = "CREATE TABLE effect (number bigint)";
        sqlx::raw_sql(table).execute(&pool).await.unwrap();
        let (into, engine) = (pool.clone(), stream_with_records());
        let consumer = Consumer::new("orders", "exactly-once")
            .with_kinesis(LocalKinesis::new(engine))
            .with_leases(PostgresStore::connect(&url, "exactly-once").unwrap())
            .exactly_once(10, move |batch| note(into.clone(), batch));
        let stop = CancellationToken::new();
        let asked = stop.clone();
        let mut worker = JoinSet::new();
        worker.spawn(consumer.run_until(async move { asked.cancelled().await }));
        for _ in 0..600 {
            if effects(&pool).await.len() >= RECORDS {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        stop.cancel();
        worker.join_next().await.unwrap().unwrap().unwrap();
        let all: Vec<i64> = (0..).take(RECORDS).collect();
        assert_eq!(effects(&pool).await, all, "max_prepared_statements = {statements}");
    }
}

/// Returns the number of warnings that two clones of a store log while they wait for changes that
/// never come.
async fn warnings_while_waiting(store: &PostgresStore) -> usize {
    let warnings = Warnings::default();
    let _here = tracing::subscriber::set_default(warnings.clone());
    for store in [store.clone(), store.clone()] {
        while tokio::time::timeout(Duration::from_secs(1), store.wait_for_change()).await.is_ok() {}
    }
    warnings.count()
}

#[tokio::test]
async fn a_store_that_can_hear_of_no_changes_says_so_once_and_listens_nowhere() {
    let Some(bouncer) = Bouncer::start(0) else { return };
    let url = bouncer.server.fresh_database();
    let pooled = PostgresStore::connect(&bouncer.before(&url), "app").unwrap();
    pooled.prepare().await.unwrap();
    assert_eq!(warnings_while_waiting(&pooled).await, 1);
    // A notification that arrives on a connection of the pooler would interrupt its client.
    for round in 0..10 {
        done(&pooled, &create(round)).await;
        assert_eq!(pooled.poll().await.unwrap().version, Some(u64::from(round) + 1));
    }
    let direct = PostgresStore::connect(&url, "app").unwrap();
    assert_eq!(warnings_while_waiting(&direct).await, 0);
}
