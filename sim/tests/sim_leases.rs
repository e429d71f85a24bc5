//! Fleets of real coordinators under faults: every guarantee holds on every seed.

use anabranch_model::lease::{Layout, LeaseChange, Write};
use anabranch_sim::faults::{FaultKind, RefusalKind, Service};
use anabranch_sim::flaw::LeaseFlaw;
use anabranch_sim::history::{HistoryEvent, HistoryLine};
use anabranch_sim::scenarios::leases;
use anabranch_sim::seeds::{self, Summary};

/// Number of seeds for the native layout.
const SEEDS: u64 = 300;

/// Number of seeds for KCL's layout.
const KCL_SEEDS: u64 = 300;

/// Asserts that every guarantee holds on every seed.
fn check(layout: Layout, seeds: u64) -> Summary {
    let summary =
        seeds::run(0..seeds, |seed| leases::run(seed, layout, LeaseFlaw::None), |_, _| true);
    println!("{layout:?}: {summary}");
    let seeds: Vec<u64> = summary.broken.iter().map(|(seed, _)| *seed).collect();
    let first = summary.broken.first().map_or("", |(_, story)| story.as_str());
    assert!(seeds.is_empty(), "{} seeds broke a promise: {seeds:?}\n\n{first}", seeds.len());
    summary
}

#[test]
fn leases_in_kcls_layout_are_fenced_and_alive_on_every_seed() {
    let summary = check(Layout::Kcl, KCL_SEEDS);
    assert!(summary.faults.of(FaultKind::StreamOutage) > 100, "too few to prove anything");
    assert!(summary.moves > KCL_SEEDS * 5, "leases hardly moved");
    let passed = |seed| {
        let lines = leases::run(seed, Layout::Kcl, LeaseFlaw::None).lines;
        let is_pass = |line: &&HistoryLine| match &line.what {
            HistoryEvent::WriteApplied { write: Write::Lease { change, .. }, outcome } => {
                matches!(change, LeaseChange::HandOver { .. }) && outcome.is_done()
            }
            _ => false,
        };
        lines.iter().filter(is_pass).count()
    };
    assert!((0..20).map(passed).sum::<usize>() > 40, "leases were hardly handed over");
}

#[test]
fn leases_are_owned_once_fenced_and_alive_on_every_seed() {
    let summary = check(Layout::Native, SEEDS);
    for fault in [
        FaultKind::Error,
        FaultKind::Throttle,
        FaultKind::Slow,
        FaultKind::RequestLost,
        FaultKind::ReplyLost,
        FaultKind::Late,
        FaultKind::TornList,
        FaultKind::Outage,
        FaultKind::StreamOutage,
        FaultKind::Cut,
        FaultKind::StoreCut,
        FaultKind::StreamCut,
        FaultKind::Twice,
        FaultKind::SlowCommit,
        FaultKind::Pause,
        FaultKind::UnreadableRow,
        FaultKind::Crash,
        FaultKind::Freeze,
        FaultKind::Stop,
        FaultKind::Split,
        FaultKind::Merge,
    ] {
        assert!(summary.faults.of(fault) > 100, "too few to prove anything: {fault}");
    }
    for service in [Service::Store, Service::Stream] {
        for why in RefusalKind::of(service) {
            let fault = match service {
                Service::Store => FaultKind::StoreRefused(*why),
                Service::Stream => FaultKind::StreamRefused(*why),
            };
            assert!(summary.faults.of(fault) > 100, "too few to prove anything: {fault}");
        }
    }
    assert!(summary.moves > SEEDS * 10, "leases hardly moved");
}

#[test]
fn the_same_seed_gives_a_fleet_the_same_history_byte_for_byte() {
    for (seed, layout) in (0..6).zip([Layout::Native, Layout::Native, Layout::Kcl].iter().cycle()) {
        let run = || leases::run(seed, *layout, LeaseFlaw::None).history();
        let once = run();
        assert!(once.lines().count() > 200, "seed {seed} is too quiet");
        assert!(once == run(), "seed {seed} has two histories");
    }
}
