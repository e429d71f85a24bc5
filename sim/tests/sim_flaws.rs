//! A test of the tests: each flaw is noticed within 200 seeds, by a promise that holds always.

use anabranch_model::lease::Layout;
use anabranch_sim::checkers::{fencing, ownership, resumption, tenure};
use anabranch_sim::flaw::Flaw;
use anabranch_sim::scenarios::leases;
use anabranch_sim::seeds;

/// How many seeds a flaw may hide in.
const SEEDS: u64 = 200;

/// Runs seeds until one notices the flaw, by one of these promises.
fn noticed(layout: Layout, flaw: Flaw, promises: &[&str]) {
    let run = |seed| leases::run(seed, layout, flaw);
    let summary = seeds::run(0..SEEDS, run, |summary, _| summary.broken.is_empty());
    let Some((seed, story)) = summary.broken.first() else {
        panic!("{flaw} went unnoticed in {SEEDS} seeds");
    };
    println!("{flaw}: noticed by seed {seed}, after {} seeds", summary.seeds);
    let by = promises.iter().any(|promise| story.contains(promise));
    assert!(by, "{flaw} was noticed otherwise: {story}");
}

#[test]
fn every_flaw_of_ownership_is_noticed() {
    for flaw in [
        Flaw::SkipsTheCounter,
        Flaw::RenewsAfterItsExpiry,
        Flaw::TakesWithoutTheFence,
        Flaw::FencesOnANewerCounter,
        Flaw::DeadlineFromTheReply,
        Flaw::TakesFromABeatingOwner,
        Flaw::GoesOnAfterAPass,
        Flaw::JoinsUnderTheOldId,
    ] {
        noticed(Layout::Native, flaw, &[ownership::PROMISE]);
    }
}

#[test]
fn every_flaw_of_checkpoints_is_noticed() {
    noticed(Layout::Native, Flaw::CheckpointSkipsWhatItReplaces, &[fencing::PROMISE]);
    let any = [ownership::PROMISE, fencing::PROMISE, resumption::PROMISE];
    noticed(Layout::Native, Flaw::ReadBackComparesTheCounterOnly, &any);
}

#[test]
fn flaws_in_kcls_layout_are_noticed() {
    noticed(Layout::Kcl, Flaw::RenewsAfterItsExpiry, &[tenure::PROMISE]);
    noticed(Layout::Kcl, Flaw::SkipsTheCounter, &[fencing::PROMISE]);
}

#[test]
fn every_flaw_is_tried() {
    assert_eq!(Flaw::ALL.len(), 10);
}
