//! Fleets of real coordinators under faults: every promise holds on every seed.

use anabranch_sim::faults::Fault;
use anabranch_sim::flaw::Flaw;
use anabranch_sim::scenarios::leases;
use anabranch_sim::seeds;

/// How many seeds the suite runs.
const SEEDS: u64 = 300;

#[test]
fn leases_are_owned_once_fenced_and_alive_on_every_seed() {
    let summary = seeds::run(0..SEEDS, |seed| leases::run(seed, Flaw::None), |_, _| true);
    println!("{summary}");
    let seeds: Vec<u64> = summary.broken.iter().map(|(seed, _)| *seed).collect();
    let first = summary.broken.first().map_or("", |(_, story)| story.as_str());
    assert!(seeds.is_empty(), "{} seeds broke a promise: {seeds:?}\n\n{first}", seeds.len());
    for fault in [
        Fault::Error,
        Fault::Throttle,
        Fault::Slow,
        Fault::RequestLost,
        Fault::ReplyLost,
        Fault::Late,
        Fault::TornList,
        Fault::Outage,
        Fault::Cut,
        Fault::Crash,
        Fault::Freeze,
        Fault::Stop,
        Fault::Split,
        Fault::Merge,
    ] {
        assert!(summary.faults.of(fault) > 100, "too few to prove anything: {fault}");
    }
    assert!(summary.moves > SEEDS * 10, "leases hardly moved");
}

#[test]
fn the_same_seed_gives_a_fleet_the_same_history_byte_for_byte() {
    for seed in 0..4 {
        let once = leases::run(seed, Flaw::None).history();
        assert!(once.lines().count() > 200, "seed {seed} is too quiet");
        assert!(once == leases::run(seed, Flaw::None).history(), "seed {seed} has two histories");
    }
}
