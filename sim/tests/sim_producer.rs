//! Real producers under faults: every promise holds on every seed, and the same seed gives the same history.

use anabranch_sim::faults::Fault;
use anabranch_sim::scenarios::producer::{self, Wrong};
use anabranch_sim::seeds;

/// How many seeds the suite runs.
const SEEDS: u64 = 150;

#[test]
fn keys_keep_their_order_and_records_have_one_outcome_on_every_seed() {
    let summary = seeds::run(0..SEEDS, |seed| producer::run(seed, Wrong::Nothing), |_, _| true);
    println!("{summary}");
    let seeds: Vec<u64> = summary.broken.iter().map(|(seed, _)| *seed).collect();
    let first = summary.broken.first().map_or("", |(_, story)| story.as_str());
    assert!(seeds.is_empty(), "{} seeds broke a promise: {seeds:?}\n\n{first}", seeds.len());
    for fault in [
        Fault::Error,
        Fault::Throttle,
        Fault::Denied,
        Fault::Slow,
        Fault::RequestLost,
        Fault::ReplyLost,
        Fault::Late,
        Fault::Cut,
        Fault::Crash,
        Fault::Freeze,
        Fault::Stop,
        Fault::Split,
        Fault::Merge,
    ] {
        assert!(summary.faults.of(fault) > 50, "too few to prove anything: {fault}");
    }
    assert!(summary.placed > SEEDS * 200, "hardly anything was placed");
}

#[test]
fn the_same_seed_gives_producers_the_same_history_byte_for_byte() {
    for seed in 0..3 {
        let once = producer::run(seed, Wrong::Nothing).history();
        assert!(once.lines().count() > 100, "seed {seed} is too quiet");
        assert!(once == producer::run(seed, Wrong::Nothing).history(), "seed {seed} differs");
    }
}
