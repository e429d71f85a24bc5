//! Cost of leases: store calls of an idle fleet, start of a fleet, and hand-overs, on every store.
//!
//! Run by `cargo xtask bench leases [idle | takes | gates | hand-over]`.

mod counted;
mod fleet;
#[path = "../../tests/postgres_server/mod.rs"]
mod postgres_server;
#[path = "../../tests/dynamodb_store/server.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod dynamodb_server;
mod stores;
mod idle;
mod takes;
mod gates;
mod calls;
mod looks;
mod hand_over;

use anabranch::clock::Clock;
use anabranch::lease::{DynamoDbStore, MemoryStore};
use std::process::ExitCode;
use stores::Stores;

/// Size of the measured fleet.
const WORKERS: usize = 10;
const LEASES: usize = 1_000;
/// Application name of the fleet that starts on an empty store.
const APPLICATION: &str = "fleet";
/// Application name of the rows on which single calls are measured.
const FILLED: &str = "filled";

fn main() -> ExitCode {
    // `cargo bench` adds flags of its own.
    let parts: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let known = ["idle", "takes", "gates", "hand-over"];
    if let Some(part) = parts.iter().find(|part| !known.contains(&part.as_str())) {
        eprintln!("error: there is no part {part:?}; the parts are {}", known.join(", "));
        return ExitCode::from(2);
    }
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|it| it == part);
    match measure(wanted) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(wanted: impl Fn(&str) -> bool) -> Result<(), String> {
    let clock = Clock::machine();
    let start_ms = clock.now_ms();
    let idle = wanted("idle").then(idle::run).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    if wanted("gates") {
        runtime.block_on(gates::run())?;
    }
    runtime.block_on(on_real_stores(&wanted, idle))?;
    println!("\nall of it took {} s", (clock.now_ms() - start_ms) / 1_000);
    Ok(())
}

async fn on_real_stores(
    wanted: &impl Fn(&str) -> bool,
    idle: Option<idle::PerMinute>,
) -> Result<(), String> {
    let stores = Stores::start().await?;
    if wanted("takes") {
        starts(&stores).await?;
    }
    let costs = if idle.is_some() { single_calls(&stores).await? } else { None };
    let mut seen = Vec::new();
    if wanted("hand-over") {
        seen = looks::hand_overs(&stores).await?;
    }
    if let (Some(idle), Some(costs)) = (idle, costs) {
        looks::units(idle, costs, &seen);
    }
    Ok(())
}

async fn starts(stores: &Stores) -> Result<(), String> {
    takes::head();
    let memory = MemoryStore::new();
    takes::run("memory", |_| Ok(memory.clone()), None).await?;
    takes::run("SQLite", |application| stores.sqlite(application), None).await?;
    if let Some(open) = stores.postgres() {
        takes::run("PostgreSQL", open, None).await?;
    }
    if let Some(open) = stores.dynamodb() {
        takes::run("DynamoDB Local", open, Some(|store| store.usage().conflicts)).await?;
    }
    Ok(())
}

/// Returns the cost of single calls on DynamoDB, if it is available.
async fn single_calls(stores: &Stores) -> Result<Option<calls::Costs>, String> {
    calls::head();
    calls::run("SQLite", stores.sqlite(FILLED)?, None).await?;
    if let Some(open) = stores.postgres() {
        calls::run("PostgreSQL", open(FILLED)?, None).await?;
    }
    let Some(open) = stores.dynamodb() else { return Ok(None) };
    let costs = calls::run("DynamoDB Local", open(FILLED)?, Some(DynamoDbStore::usage)).await?;
    Ok(Some(costs))
}
