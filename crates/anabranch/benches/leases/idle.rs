//! Store calls of an idle fleet, counted on paused time.
//!
//! The coordinator makes the same calls on every store, so a memory store is sufficient.

use crate::counted::{CallCounts, Kind};
use crate::fleet::{Until, Worker, settings, spread, stream, wait};
use crate::{LEASES, WORKERS};
use anabranch::clock::{Clock, Rng};
use anabranch::lease::MemoryStore;
use anabranch_model::lease::Layout;
use std::sync::Arc;
use std::time::Duration;

/// Minutes during which the idle fleet is observed.
const MINUTES: u64 = 3;

/// Writes of KCL: one renewal per lease every 3.33 s, a third of its failover time.
const KCL_WRITES_PER_MINUTE: u64 = LEASES as u64 * 18;

/// Calls per minute of an idle fleet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerMinute {
    pub(crate) beats: f64,
    pub(crate) lists: f64,
}

/// Prints the table. Returns the calls of the native layout.
pub(crate) fn run() -> Result<PerMinute, String> {
    println!("\nAn idle fleet of {WORKERS} workers with {LEASES} leases: store calls per minute");
    println!(
        "{:<10}{:>8}{:>13}{:>14}{:>9}{:>8}{:>12}{:>14}{:>15}",
        "layout",
        "beats",
        "checkpoints",
        "other writes",
        "looks",
        "lists",
        "other reads",
        "writes in all",
        "KCL's writes"
    );
    let native = watch("native", Layout::Native)?;
    watch("KCL's", Layout::Kcl)?;
    Ok(native)
}

fn watch(name: &str, layout: Layout) -> Result<PerMinute, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .map_err(|error| error.to_string())?;
    let tally = runtime.block_on(idle(layout))?;
    let per_minute = |kind| per_minute(tally.asked(kind));
    let other = per_minute(Kind::Create) + per_minute(Kind::Take) + per_minute(Kind::OtherWrite);
    let writes = tally.writes() / MINUTES;
    println!(
        "{name:<10}{:>8.0}{:>13.0}{other:>14.1}{:>9.0}{:>8.0}{:>12.0}{writes:>14}{:>15}",
        per_minute(Kind::Beat),
        per_minute(Kind::Checkpoint),
        per_minute(Kind::Look),
        per_minute(Kind::List),
        per_minute(Kind::OtherRead),
        format!("{KCL_WRITES_PER_MINUTE} = {:.0}x", ratio(KCL_WRITES_PER_MINUTE, writes)),
    );
    Ok(PerMinute { beats: per_minute(Kind::Beat), lists: per_minute(Kind::List) })
}

#[expect(clippy::cast_precision_loss, reason = "figures for people, far below 2^52")]
fn per_minute(count: u64) -> f64 {
    count as f64 / MINUTES as f64
}

#[expect(clippy::cast_precision_loss, reason = "figures for people, far below 2^52")]
fn ratio(theirs: u64, ours: u64) -> f64 {
    theirs as f64 / ours as f64
}

async fn idle(layout: Layout) -> Result<Arc<CallCounts>, String> {
    let (store, stream, tally) = (MemoryStore::with_layout(layout), stream(LEASES), Arc::default());
    let mut workers = Vec::new();
    let clock = Clock::of_runtime();
    for i in 0..WORKERS {
        let settings = settings(&format!("worker-{i}"));
        let chance = Rng::seeded(i as u64);
        let (store, clock) = (store.clone(), clock.clone());
        workers.push(Worker::start(store, &tally, &stream, settings, clock, chance).await?);
    }
    // In KCL's layout a worker steals one lease at a time, so balancing the fleet takes long.
    let (every, within) = (Duration::from_secs(1), Duration::from_hours(4));
    wait(&workers, LEASES, Until::Level, every, within).await?;
    tokio::time::sleep(Duration::from_mins(1)).await;
    tally.reset();
    tokio::time::sleep(Duration::from_secs(60 * MINUTES)).await;
    let (fewest, most) = spread(&workers);
    if most - fewest > 1 || tally.failed() > 0 {
        return Err(format!("the fleet was not idle: {fewest} to {most} leases each"));
    }
    Ok(tally)
}
