//! Milliseconds of CPU for one look and one plan: `cargo bench -p anabranch-model --bench plan`.
//!
//! A worker does this about once a second, beside its real work, so each line has to stay far
//! below the 50 ms that a plan for 10,000 shards and 200 workers may cost.

use anabranch_model::lease::fleet_snapshot::{
    FleetSnapshot, LeasePhase, LeaseSnapshot, WorkerSnapshot, WorkerStatus,
};
use anabranch_model::lease::fleet_view::FleetView;
use anabranch_model::lease::plan::{Balance, PlanSettings, PlanningWorker, plan};
use anabranch_model::lease::row::LeaseKey;
use anabranch_model::lease::table::Layout;
use anabranch_model::lease::worker_row::WorkerId;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const ROUNDS: u32 = 20;

fn worker(i: usize) -> WorkerId {
    format!("host-{i:04}/0123456789abcdef").into()
}

/// A table in which `owner` says who has which lease.
fn table(shards: usize, workers: usize, owner: impl Fn(usize) -> Option<usize>) -> FleetSnapshot {
    let row = |i: usize| LeaseSnapshot {
        key: LeaseKey::new("s", format!("shardId-{i:012}")),
        owner: owner(i).map(worker),
        counter: 1,
        phase: LeasePhase::Ready,
        requested: None,
        refused: false,
        bytes_per_second: Some((i as u64 * 7919) % 1_000_000),
    };
    let heart = |i| WorkerSnapshot {
        id: worker(i),
        counter: 1,
        status: WorkerStatus::Active,
        reads: None,
        lease_time_ms: None,
    };
    FleetSnapshot {
        workers: (0..workers).map(heart).collect(),
        leases: (0..shards).map(row).collect(),
    }
}

fn measure(name: &str, layout: Layout, balance: Balance, snapshot: &FleetSnapshot, now_ms: u64) {
    let settings = PlanSettings { balance, ..PlanSettings::default() };
    let me = snapshot.workers[3].id.clone();
    let mine = snapshot.leases.iter().filter(|lease| lease.owner.as_ref() == Some(&me));
    let running: BTreeSet<LeaseKey> = mine.map(|lease| lease.key.clone()).collect();
    let mut view = FleetView::new(layout, 10_000, 5_000);
    view.observe(snapshot.clone(), 0);
    let looks: Vec<_> = (0..ROUNDS).map(|_| snapshot.clone()).collect();
    let observed = cpu(|| looks.into_iter().for_each(|look| view.observe(look, 0))) / ROUNDS;
    let me = PlanningWorker { id: &me, running: &running };
    let mut moves = 0;
    let plans = || {
        for round in 0..ROUNDS {
            moves = plan(&view, me, now_ms, round.into(), &settings).len();
        }
    };
    let planned = cpu(plans) / ROUNDS;
    println!(
        "{name:<34} look {:>7.3} ms   plan {:>7.3} ms   {moves} moves",
        observed.as_secs_f64() * 1e3,
        planned.as_secs_f64() * 1e3,
    );
}

/// The CPU time that this thread spends on `work`.
fn cpu(work: impl FnOnce()) -> Duration {
    let (start, before) = (Instant::now(), on_cpu());
    work();
    match (before, on_cpu()) {
        (Some(before), Some(after)) => after.saturating_sub(before),
        // Elsewhere than on Linux the time on the clock has to do.
        _ => start.elapsed(),
    }
}

/// The first number of Linux's `schedstat`: nanoseconds on the CPU.
fn on_cpu() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

fn main() {
    let (shards, workers) = (10_000, 200);
    println!("{shards} shards, {workers} workers, one worker's cost");
    let weight = Balance::Weight { hysteresis_percent: 20 };
    let level = table(shards, workers, |i| Some(i % workers));
    let free = table(shards, workers, |_| None);
    let newcomers = table(shards, workers, |i| Some(i % 100));
    let uneven = table(shards, workers, |i| Some(i * workers / shards));
    measure("level, by count", Layout::Native, Balance::Count, &level, 0);
    measure("level, by weight", Layout::Native, weight, &uneven, 0);
    measure("all free", Layout::Native, Balance::Count, &free, 1_000);
    measure("100 newcomers", Layout::Native, Balance::Count, &newcomers, 0);
    measure("199 silent workers", Layout::Native, Balance::Count, &level, 20_000);
    measure("kcl2, level", Layout::Kcl, Balance::Count, &level, 0);
    measure("kcl2, all free", Layout::Kcl, Balance::Count, &free, 1_000);
}
