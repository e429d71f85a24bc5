//! Throughput of the relay, in rows per second, from a real PostgreSQL into a local stream over
//! HTTP. The relay is compared with a plain loop that sends the first row of each key and waits.
//! Run by `cargo xtask bench relay`.

#[path = "../../../anabranch/tests/postgres_server/mod.rs"]
mod postgres_server;
mod plain;

use anabranch::clock::Clock;
use anabranch::stream::AwsKinesis;
use anabranch_local::op::create_stream;
use anabranch_local::{EngineOptions, Local};
use anabranch_outbox::{Database, OutboxTable, Relay};
use postgres_server::Server;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection, Executor};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ROWS: u64 = 100_000;
const SHARDS: i64 = 4;
const STREAM: &str = "orders";
/// Time limit of the plain loop: with one key it would take hours.
const PLAIN_MS: u64 = 10_000;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let measured = match runtime {
        Ok(runtime) => runtime.block_on(measure()),
        Err(error) => Err(error.into()),
    };
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn measure() -> Result<()> {
    let Some(server) = Server::start() else { return Ok(()) };
    println!("rows a second, {ROWS} rows of 200 bytes, {SHARDS} shards over HTTP");
    println!("{:>8} {:>12} {:>12} {:>8}", "keys", "relay", "plain", "ratio");
    for keys in [1, 100, 10_000] {
        let relay = relay(&outbox(&server, keys).await?).await?;
        let plain = plain::run(&outbox(&server, keys).await?, PLAIN_MS).await?;
        println!("{keys:>8} {relay:>12.0} {plain:>12.0} {:>7.1}x", relay / plain);
    }
    Ok(())
}

/// A database with waiting rows, and a stream.
struct Bench {
    url: String,
    kinesis: AwsKinesis,
    /// Stopped on drop.
    _local: Local,
}

impl Bench {
    async fn session(&self) -> Result<PgConnection> {
        Ok(PgConnection::connect_with(&self.url.parse::<PgConnectOptions>()?).await?)
    }
}

async fn outbox(server: &Server, keys: u64) -> Result<Bench> {
    let url = server.fresh_database();
    anabranch_outbox::init(&Database::from_url(&url)?, &OutboxTable::named("outbox")?, false)
        .await?;
    let local = Local::builder().with_options(EngineOptions::instant()).start().await?;
    local.engine().create_stream(&create_stream::Request {
        stream_name: Some(STREAM.to_owned()),
        shard_count: Some(SHARDS),
        ..create_stream::Request::default()
    })?;
    let kinesis = AwsKinesis::new(&local.sdk_config());
    let bench = Bench { url, kinesis, _local: local };
    let fill = format!(
        "INSERT INTO outbox (partition_key, data) \
         SELECT 'key-' || n % {keys}, convert_to(lpad(n::text, 200, '.'), 'UTF8') \
         FROM generate_series(1, {ROWS}) n"
    );
    let mut session = bench.session().await?;
    session.execute(AssertSqlSafe(fill)).await?;
    session.execute("ANALYZE outbox").await?;
    Ok(bench)
}

/// Returns the relay's rows per second until the table is empty.
async fn relay(bench: &Bench) -> Result<f64> {
    let relay = Relay::new(Database::from_url(&bench.url)?, OutboxTable::named("outbox")?, STREAM)
        // Lifts the shard rate limit, so that the machine is measured.
        .with_producer(|producer| producer.with_rate_percent(1_000));
    let (clock, stop) = (Clock::machine(), CancellationToken::new());
    let (kinesis, stopped) = (bench.kinesis.clone(), stop.clone());
    let start_ms = clock.now_ms();
    let mut task = JoinSet::new();
    task.spawn(async move { relay.run(&kinesis, stopped).await });
    let mut session = bench.session().await?;
    loop {
        let left = sqlx::query_scalar::<_, bool>("SELECT EXISTS (SELECT FROM outbox)");
        if !left.fetch_one(&mut session).await? {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let took_ms = clock.now_ms() - start_ms;
    stop.cancel();
    while task.join_next().await.is_some() {}
    Ok(rate(ROWS, took_ms))
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people to read")]
fn rate(rows: u64, took_ms: u64) -> f64 {
    rows as f64 * 1_000.0 / took_ms.max(1) as f64
}
