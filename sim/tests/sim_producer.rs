//! Real producers under faults: every guarantee holds on every seed, and a seed reproduces its
//! history.

use anabranch_sim::faults::FaultKind;
use anabranch_sim::scenarios::producer::{self, ProducerFlaw};
use anabranch_sim::seeds;

/// Number of seeds that the suite runs.
const SEEDS: u64 = 150;

#[test]
fn keys_keep_their_order_and_records_have_one_outcome_on_every_seed() {
    let summary = seeds::run(0..SEEDS, |seed| producer::run(seed, ProducerFlaw::None), |_, _| true);
    println!("{summary}");
    let seeds: Vec<u64> = summary.broken.iter().map(|(seed, _)| *seed).collect();
    let first = summary.broken.first().map_or("", |(_, story)| story.as_str());
    assert!(seeds.is_empty(), "{} seeds broke a promise: {seeds:?}\n\n{first}", seeds.len());
    for fault in [
        FaultKind::Error,
        FaultKind::Throttle,
        FaultKind::Denied,
        FaultKind::Slow,
        FaultKind::RequestLost,
        FaultKind::ReplyLost,
        FaultKind::Late,
        FaultKind::Cut,
        FaultKind::Crash,
        FaultKind::Freeze,
        FaultKind::Stop,
        FaultKind::Split,
        FaultKind::Merge,
    ] {
        assert!(summary.faults.of(fault) > 50, "too few to prove anything: {fault}");
    }
    assert!(summary.placed > SEEDS * 200, "hardly anything was placed");
}

#[test]
fn the_same_seed_gives_producers_the_same_history_byte_for_byte() {
    for seed in 0..3 {
        let once = producer::run(seed, ProducerFlaw::None).history();
        assert!(once.lines().count() > 100, "seed {seed} is too quiet");
        assert!(once == producer::run(seed, ProducerFlaw::None).history(), "seed {seed} differs");
    }
}
