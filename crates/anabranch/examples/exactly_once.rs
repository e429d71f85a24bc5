//! Counts the records of each key in a table, each record exactly once, even if the program is
//! killed. The counts and the checkpoint are stored in one transaction.
//!
//! ```sh
//! anabranch local &            # and the exports that it prints
//! cargo run --release -p anabranch --example exactly_once -- orders
//! ```

use anabranch::consumer::{Consumer, HandlerError, TransactionBatch};
use anabranch::lease::SqliteStore;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use std::process::ExitCode;

const COUNT: &str = "INSERT INTO count (key, records) VALUES ($1, 1) \
                     ON CONFLICT (key) DO UPDATE SET records = records + 1";

#[tokio::main]
async fn main() -> ExitCode {
    let ended = match std::env::args().nth(1) {
        Some(stream) => read(&stream).await,
        None => Err("usage: exactly_once STREAM".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

pub(crate) async fn read(stream: &str) -> Result<(), HandlerError> {
    let file = SqliteConnectOptions::new().filename("counter.db").create_if_missing(true);
    let pool = SqlitePool::connect_with(file).await?;
    let table = "CREATE TABLE IF NOT EXISTS count (key TEXT PRIMARY KEY, records INTEGER)";
    sqlx::query(table).execute(&pool).await?;
    Consumer::new(stream, "counter")
        .with_kinesis(anabranch::stream::aws::from_env().await?)
        .with_leases(SqliteStore::open("counter.db", "counter")?)
        .exactly_once(100, move |batch| count(pool.clone(), batch))
        .run()
        .await?;
    Ok(())
}

async fn count(pool: SqlitePool, batch: TransactionBatch<SqliteStore>) -> Result<(), HandlerError> {
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    for record in batch.iter() {
        let key = record.partition_key.as_str();
        sqlx::query(COUNT).bind(key).execute(&mut *transaction).await?;
        println!("{} {key}: {}", batch.shard, record.data.escape_ascii());
    }
    batch.commit(&mut transaction).await?;
    transaction.commit().await?;
    Ok(())
}
