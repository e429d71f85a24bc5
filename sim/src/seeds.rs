//! Runs many seeds on all cores and summarizes their results.

use crate::faults::FaultCounts;
use crate::scenarios::SeedReport;
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZero;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

/// Summary of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Number of seeds that were run.
    pub seeds: u64,
    /// Total duration of their worlds, in milliseconds of world time.
    pub virtual_ms: u64,
    /// Injected faults.
    pub faults: FaultCounts,
    /// Number of fleets that drew each option.
    pub drawn: BTreeMap<String, u64>,
    /// Number of times that leases changed hands.
    pub moves: u64,
    /// Number of records that producers placed.
    pub placed: u64,
    /// Number of records that were delivered.
    pub deliveries: u64,
    /// Seeds that broke a guarantee, each with its failure text.
    pub broken: Vec<(u64, String)>,
}

impl Summary {
    fn add(&mut self, report: &SeedReport) {
        self.seeds += 1;
        self.virtual_ms += report.virtual_ms;
        self.faults.merge(&report.faults);
        for option in &report.drawn {
            *self.drawn.entry(option.clone()).or_default() += 1;
        }
        self.moves += report.moves;
        self.placed += report.placed;
        self.deliveries += report.deliveries;
        if let Some(story) = report.failure_text() {
            self.broken.push((report.seed, story));
            self.broken.sort_unstable();
        }
    }
}

/// Describes the counts: a producer moves no leases, and a fleet places no records.
pub fn counted(moves: u64, placed: u64, deliveries: u64) -> String {
    match placed {
        0 => format!("{moves} moves of leases, {deliveries} deliveries"),
        _ => format!("{placed} records placed, {deliveries} deliveries"),
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.virtual_ms / 3_600_000;
        let minutes = self.virtual_ms / 60_000 % 60;
        writeln!(f, "{} seeds, {hours} h {minutes} min of virtual time", self.seeds)?;
        writeln!(f, "{}", counted(self.moves, self.placed, self.deliveries))?;
        for (fault, count) in self.faults.iter() {
            writeln!(f, "{count:>9} {fault}")?;
        }
        for (option, count) in &self.drawn {
            writeln!(f, "{count:>9} fleets: {option}")?;
        }
        write!(f, "{} broken", self.broken.len())
    }
}

/// Runs each seed once, on all cores. `each` receives every report as it completes; if it returns
/// `false`, no further seeds are started.
pub fn run(
    seeds: Range<u64>,
    run: impl Fn(u64) -> SeedReport + Sync,
    each: impl Fn(&Summary, &SeedReport) -> bool + Sync,
) -> Summary {
    let next = AtomicU64::new(seeds.start);
    let summary = Mutex::new(Summary::default());
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let report = run(seed);
                    let mut summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
                    summary.add(&report);
                    if !each(&summary, &report) {
                        next.store(seeds.end, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    summary.into_inner().unwrap_or_else(PoisonError::into_inner)
}
