//! Fleets of real consumers under faults: every promise holds on every seed, in every case of a
//! reshard with every kind of trouble, and in every story that broke something before.

use anabranch_sim::faults::Fault;
use anabranch_sim::flaw::consumer::ConsumerFlaw;
use anabranch_sim::scenarios::cases::{self, Change, Trouble, When};
use anabranch_sim::scenarios::fixed::{self, Story};
use anabranch_sim::scenarios::{Report, consumer};
use anabranch_sim::seeds;
use std::ops::Range;

/// How many seeds the suite runs. `cargo xtask sim --full` runs a thousand.
const SEEDS: u64 = 150;

/// How many seeds each case and each story is played with.
const PLAYS: Range<u64> = 0..4;

/// Runs seeds, and shows the first that broke a promise.
fn hold(seeds: Range<u64>, run: impl Fn(u64) -> Report + Sync) -> seeds::Summary {
    let summary = seeds::run(seeds, run, |_, _| true);
    let broken: Vec<u64> = summary.broken.iter().map(|(seed, _)| *seed).collect();
    let first = summary.broken.first().map_or("", |(_, story)| story.as_str());
    assert!(broken.is_empty(), "{} seeds broke a promise: {broken:?}\n\n{first}", broken.len());
    summary
}

#[test]
fn consumers_keep_every_promise_on_every_seed() {
    let summary = hold(0..SEEDS, |seed| {
        let report = consumer::run(seed, ConsumerFlaw::None);
        let reshards = report.faults.of(Fault::Split) + report.faults.of(Fault::Merge);
        assert!(reshards > 0, "seed {seed} has no reshard");
        assert!(report.faults.of(Fault::Crash) > 0, "seed {seed} has no crash");
        report
    });
    println!("{summary}");
    for fault in [
        Fault::Error,
        Fault::Throttle,
        Fault::Slow,
        Fault::RequestLost,
        Fault::ReplyLost,
        Fault::Late,
        Fault::TornList,
        Fault::StaleList,
        Fault::Expired,
        Fault::Outage,
        Fault::Cut,
        Fault::Freeze,
        Fault::Stop,
        Fault::Trim,
    ] {
        assert!(summary.faults.of(fault) > 10, "too few to prove anything: {fault}");
    }
}

#[test]
fn the_same_seed_gives_consumers_the_same_history_byte_for_byte() {
    for seed in 0..8 {
        let once = consumer::run(seed, ConsumerFlaw::None).history();
        assert!(once.lines().count() > 200, "seed {seed} is too quiet");
        let again = consumer::run(seed, ConsumerFlaw::None).history();
        let differs = once.lines().zip(again.lines()).find(|(one, other)| one != other);
        assert!(once == again, "seed {seed} has two histories, from {differs:?} on");
    }
}

/// One test for each line: when, what, and with which trouble.
macro_rules! cases {
    ($($name:ident: $when:ident $change:ident $trouble:ident,)*) => {$(
        #[test]
        fn $name() {
            hold(PLAYS, |seed| {
                cases::run(When::$when, Change::$change, Trouble::$trouble, seed)
            });
        }
    )*};
}

cases! {
    online_split_with_a_graceful_stop: Online Split GracefulStop,
    online_split_with_a_crash: Online Split Crash,
    online_split_with_a_zombie: Online Split Zombie,
    online_split_with_lost_replies: Online Split LostReplies,
    online_split_with_throttling: Online Split Throttling,
    online_split_with_expired_iterators: Online Split ExpiredIterators,
    online_split_with_a_store_outage: Online Split StoreOutage,
    online_split_with_trimmed_parents: Online Split TrimmedParents,
    online_merge_with_a_graceful_stop: Online Merge GracefulStop,
    online_merge_with_a_crash: Online Merge Crash,
    online_merge_with_a_zombie: Online Merge Zombie,
    online_merge_with_lost_replies: Online Merge LostReplies,
    online_merge_with_throttling: Online Merge Throttling,
    online_merge_with_expired_iterators: Online Merge ExpiredIterators,
    online_merge_with_a_store_outage: Online Merge StoreOutage,
    online_merge_with_trimmed_parents: Online Merge TrimmedParents,
    offline_split_with_a_graceful_stop: Offline Split GracefulStop,
    offline_split_with_a_crash: Offline Split Crash,
    offline_split_with_a_zombie: Offline Split Zombie,
    offline_split_with_lost_replies: Offline Split LostReplies,
    offline_split_with_throttling: Offline Split Throttling,
    offline_split_with_expired_iterators: Offline Split ExpiredIterators,
    offline_split_with_a_store_outage: Offline Split StoreOutage,
    offline_split_with_trimmed_parents: Offline Split TrimmedParents,
    offline_merge_with_a_graceful_stop: Offline Merge GracefulStop,
    offline_merge_with_a_crash: Offline Merge Crash,
    offline_merge_with_a_zombie: Offline Merge Zombie,
    offline_merge_with_lost_replies: Offline Merge LostReplies,
    offline_merge_with_throttling: Offline Merge Throttling,
    offline_merge_with_expired_iterators: Offline Merge ExpiredIterators,
    offline_merge_with_a_store_outage: Offline Merge StoreOutage,
    offline_merge_with_trimmed_parents: Offline Merge TrimmedParents,
}

#[test]
fn every_story_that_broke_something_before_ends_well() {
    for story in Story::ALL {
        hold(PLAYS, |seed| fixed::run(story, seed, ConsumerFlaw::None));
    }
}
