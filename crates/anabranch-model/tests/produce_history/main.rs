//! Histories: thousands of runs of the machine against a faulty service and network.
//!
//! A failing run prints its seed; the same seed reproduces the run.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod weather;
mod service;
mod oracle;
mod world;
mod throughput;

use anabranch_model::produce::settings::Aggregation;
use weather::{CALM, NetworkFaultRates, ProduceHistoryFlaw, STORM};
use world::ProduceWorld;

/// Runs seeds and panics with the first one that breaks a guarantee.
fn check(name: &str, seeds: u64, weather: NetworkFaultRates) {
    for seed in 0..seeds {
        let (problems, ..) = ProduceWorld::new(seed, weather, ProduceHistoryFlaw::None).run();
        assert!(problems.is_empty(), "{name}, seed {seed}: {problems:#?}");
    }
}

/// Returns how many of `seeds` runs with a flaw break a guarantee.
fn caught(seeds: u64, weather: NetworkFaultRates, flaw: ProduceHistoryFlaw) -> usize {
    (0..seeds).filter(|seed| !ProduceWorld::new(*seed, weather, flaw).run().0.is_empty()).count()
}

const MODES: [Aggregation; 3] = [Aggregation::ByShard, Aggregation::ByKey, Aggregation::Off];

#[test]
fn a_calm_stream_takes_everything_in_order() {
    for aggregation in MODES {
        check("calm", 20, NetworkFaultRates { aggregation, ..CALM });
    }
}

#[test]
fn order_and_outcomes_hold_through_failures_and_reshards() {
    for aggregation in MODES {
        check("storm", 60, NetworkFaultRates { aggregation, ..STORM });
    }
}

#[test]
fn order_and_outcomes_hold_when_the_stream_is_made_anew() {
    let weather = NetworkFaultRates { recreations: true, ..STORM };
    check("anew", 50, weather);
    check("anew, no reshards", 30, NetworkFaultRates { reshards: false, ..weather });
}

#[test]
fn holes_stop_their_keys_through_everything() {
    for aggregation in MODES {
        check("refusals", 40, NetworkFaultRates { aggregation, refusals: 15, ..STORM });
        check("deadlines", 40, NetworkFaultRates { aggregation, deadline_ms: Some(600), ..STORM });
    }
}

#[test]
fn a_refusal_of_the_caller_gives_up_no_record_and_keeps_the_order() {
    for aggregation in MODES {
        check("denials", 40, NetworkFaultRates { aggregation, denials: true, ..STORM });
        let numbered = aggregation == Aggregation::ByShard;
        check(
            "denials alone",
            20,
            NetworkFaultRates { aggregation, numbered, denials: true, ..CALM },
        );
    }
    check("no list", 20, NetworkFaultRates { denials: true, list_failures: 100, ..STORM });
    // With deadlines, permanent refusals or a deleted stream, records may be given up for those
    // reasons.
    check("anew", 30, NetworkFaultRates { denials: true, recreations: true, ..STORM });
    check("deadlines", 30, NetworkFaultRates { denials: true, deadline_ms: Some(600), ..STORM });
    check("refusals", 30, NetworkFaultRates { denials: true, refusals: 15, ..STORM });
}

#[test]
fn everything_flows_when_no_list_is_ever_given() {
    for aggregation in MODES {
        check("no list", 20, NetworkFaultRates { aggregation, list_failures: 100, ..STORM });
    }
}

#[test]
fn order_holds_with_numbers_and_at_a_tight_rate() {
    check("numbered", 30, NetworkFaultRates { numbered: true, ..STORM });
    for aggregation in MODES {
        check("tight", 20, NetworkFaultRates { aggregation, tight_rate: true, ..STORM });
    }
}

#[test]
fn a_split_without_other_trouble_costs_one_stray_at_the_most_for_each_container() {
    for seed in 0..20 {
        let weather = NetworkFaultRates { reshards: true, ..CALM };
        let (problems, strays, reads) =
            ProduceWorld::new(seed, weather, ProduceHistoryFlaw::None).run();
        assert!(problems.is_empty(), "seed {seed}: {problems:#?}");
        assert!(strays <= 60 && reads <= 80, "seed {seed}: {strays} strays, {reads} lists");
    }
}

#[test]
fn the_oracle_notices_each_flaw() {
    let refusing = NetworkFaultRates { refusals: 15, ..STORM };
    for (flaw, weather) in [
        (ProduceHistoryFlaw::NoOrder, STORM),
        (ProduceHistoryFlaw::GoOnBehindHoles, refusing),
        (ProduceHistoryFlaw::BlindJudge, NetworkFaultRates { reshards: true, ..CALM }),
        (
            ProduceHistoryFlaw::OldList,
            NetworkFaultRates { recreations: true, reshards: false, ..STORM },
        ),
        (ProduceHistoryFlaw::RetryAtTheBack, STORM),
        (ProduceHistoryFlaw::GiveUpWhenDenied, NetworkFaultRates { denials: true, ..STORM }),
    ] {
        let caught = caught(20, weather, flaw);
        assert!(caught > 0, "{flaw:?} was not noticed in 20 runs");
    }
}
