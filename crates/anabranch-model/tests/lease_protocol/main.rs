//! Exploration of every interleaving of two workers with the real rules of the native lease table.
//!
//! All events at once on two leases cannot be explored in seconds. So the protocol is divided into
//! parts that interact only through the row: heartbeats and fences, hand-overs, checkpoints, joins.
//! Each part is explored completely on one lease with every fault. The parts in which leases share
//! the heartbeat and the worker's one call at a time are explored again on two leases with fewer
//! faults.
//!
//! The same explorations with one rule broken must end in a violation, except for two flaws that
//! another mechanism covers.

mod rules;
mod flaw;
mod world;
mod choices;
mod effects;
mod explore;

use choices::{GOALS, Scope};
use explore::explore;
use flaw::Flaw;

const QUIET: Scope = Scope {
    leases: 1,
    owned: true,
    ticks: 0,
    lease_times: [2, 2],
    beats: [0, 0],
    terms: 3,
    watchers_from: 2,
    rejoin: false,
    hand_over: false,
    release: false,
    checkpoints: false,
    losses: true,
    late: true,
    late_beats: true,
    abandon: true,
};

/// Both workers send heartbeats, observe, fence and take; every message may be lost or late.
const HEARTS: Scope = Scope { ticks: 3, beats: [1, 1], watchers_from: 0, terms: 2, ..QUIET };

/// Worker a owns and worker b observes: enough to show a flaw of heartbeats.
const OWNER_AND_WATCHER: Scope = Scope { watchers_from: 1, ..HEARTS };

/// An owner with a longer lease time than its observer, which must be observed for as long.
const LONG_AND_SHORT: Scope =
    Scope { lease_times: [3, 2], ticks: 4, beats: [1, 2], ..OWNER_AND_WATCHER };

/// An owner with a shorter lease time than its observer.
const SHORT_AND_LONG: Scope = Scope { lease_times: [2, 3], beats: [1, 1], ..LONG_AND_SHORT };

/// One heartbeat for two leases.
const TWO_HEARTS: Scope = Scope { leases: 2, late: false, late_beats: false, ..HEARTS };

/// Requesting, withdrawing, handing over and releasing.
const HAND_OVERS: Scope = Scope { hand_over: true, release: true, ..QUIET };

/// Long enough for a request, a take of the own row, another request, and the late first hand-over.
const ASKED_TWICE: Scope = Scope { terms: 4, release: false, losses: false, ..HAND_OVERS };

/// Long enough for a release, a take of the own row, and the late release.
const RELEASED_LATE: Scope = Scope { terms: 4, release: true, losses: false, ..QUIET };

/// Hand-overs without losses on two leases.
const TWO_HAND_OVERS: Scope =
    Scope { leases: 2, hand_over: true, losses: false, late: false, ..QUIET };

/// Checkpoints and ends around a release and a take.
const CHECKPOINTS: Scope = Scope { checkpoints: true, release: true, ..QUIET };

/// Late checkpoints of an owner that is fenced.
const FENCED_CHECKPOINTS: Scope = Scope {
    ticks: 2,
    beats: [1, 1],
    watchers_from: 1,
    checkpoints: true,
    terms: 2,
    losses: false,
    late_beats: false,
    ..QUIET
};

/// Worker a leaves, crashes, is fenced, and joins again.
const JOINS: Scope = Scope {
    owned: false,
    ticks: 2,
    beats: [0, 1],
    watchers_from: 1,
    rejoin: true,
    terms: 2,
    losses: false,
    late_beats: false,
    abandon: false,
    ..QUIET
};

/// Explores a scope without a flaw: every guarantee holds, and exactly these goals are reached.
fn holds(scope: &Scope, goals: &[&str]) {
    let report = explore(scope, Flaw::None);
    println!("{} states", report.states);
    assert_eq!(report.violation, None);
    let reached: Vec<&str> =
        GOALS.into_iter().zip(report.goals).filter(|(_, yes)| *yes).map(|(goal, _)| goal).collect();
    assert_eq!(reached, goals);
}

/// Explores a scope with a flaw, which must break this guarantee.
fn caught(flaw: Flaw, scope: &Scope, promise: &str) {
    let report = explore(scope, flaw);
    let story = report.violation.unwrap_or_else(|| panic!("{flaw:?} went unnoticed"));
    println!("{flaw:?}, {} states: {story}", report.states);
    assert!(story.starts_with(promise), "{flaw:?} was noticed otherwise: {story}");
}

const TWO_DELIVER: &str = "both workers may deliver";
const TOOK_FROM_LOSER: &str = "lease 0 took a checkpoint from who had lost it";
const WENT_BACK: &str = "the checkpoint of lease 0 went back";
const LACKS: &str = "lease 0 lacks a checkpoint that was acknowledged";
const READS_AGAIN: &str = "a taker of lease 0 reads what was done before";

#[test]
fn two_workers_never_deliver_at_once_through_beats_and_fences() {
    holds(&HEARTS, &["b delivers what was a's"]);
    holds(&TWO_HEARTS, &["b delivers what was a's", "a delivers what was b's"]);
}

#[test]
fn two_workers_with_different_lease_times_never_deliver_at_once() {
    holds(&LONG_AND_SHORT, &["b delivers what was a's"]);
    holds(&SHORT_AND_LONG, &["b delivers what was a's"]);
}

#[test]
fn two_workers_never_deliver_at_once_through_hand_overs_and_releases() {
    holds(&HAND_OVERS, &["b delivers what was a's"]);
    holds(&ASKED_TWICE, &["b delivers what was a's"]);
    holds(&RELEASED_LATE, &["b delivers what was a's"]);
    holds(&TWO_HAND_OVERS, &["b delivers what was a's", "a delivers what was b's"]);
}

#[test]
fn checkpoints_are_fenced_and_never_go_back() {
    let goals = ["b delivers what was a's", "b goes on after a checkpoint", "the shard ends"];
    holds(&CHECKPOINTS, &goals);
    holds(&FENCED_CHECKPOINTS, &goals);
}

#[test]
fn a_worker_that_joins_again_is_another_worker() {
    holds(&JOINS, &["b delivers what was a's", "a delivers under its second id"]);
}

#[test]
fn every_broken_rule_of_hearts_is_noticed() {
    for flaw in [
        Flaw::FenceSkipsTheCounter,
        Flaw::RenewsAfterItsExpiry,
        Flaw::DeadlineFromTheReply,
        Flaw::RetryCountsAnew,
        Flaw::TakesWithoutTheFence,
        Flaw::FencesOnANewerCounter,
        Flaw::TakesFromABeatingOwner,
        Flaw::ResumesAndBeatSkipsTheFence,
    ] {
        caught(flaw, &OWNER_AND_WATCHER, TWO_DELIVER);
    }
    caught(Flaw::JoinsUnderTheOldId, &JOINS, TWO_DELIVER);
    caught(Flaw::JudgesByTheWatchersLeaseTime, &LONG_AND_SHORT, TWO_DELIVER);
}

#[test]
fn every_broken_rule_of_hand_overs_is_noticed() {
    for flaw in [
        Flaw::TakeSkipsTheTerm,
        Flaw::ReadBackComparesTheCounterOnly,
        Flaw::GoesOnAfterAPass,
        Flaw::GoesOnAfterARelease,
    ] {
        caught(flaw, &HAND_OVERS, TWO_DELIVER);
    }
    caught(Flaw::ReleaseSkipsTheTerm, &RELEASED_LATE, TWO_DELIVER);
    caught(Flaw::PassSkipsTheTerm, &ASKED_TWICE, TWO_DELIVER);
}

#[test]
fn every_broken_rule_of_checkpoints_is_noticed() {
    caught(Flaw::CheckpointSkipsTheTerm, &CHECKPOINTS, TOOK_FROM_LOSER);
    caught(Flaw::CheckpointSkipsTheTerm, &FENCED_CHECKPOINTS, TOOK_FROM_LOSER);
    caught(Flaw::CheckpointSkipsWhatItReplaces, &CHECKPOINTS, WENT_BACK);
    caught(Flaw::ReadBackComparesTheCounterOnly, &CHECKPOINTS, LACKS);
    caught(Flaw::ReadsOnFromTheListedRow, &FENCED_CHECKPOINTS, READS_AGAIN);
}

/// An owner stops for good at its deadline, and a heartbeat checks the fence. Either mechanism
/// alone is enough for the guarantees to hold.
#[test]
fn either_of_the_two_locks_on_a_fenced_heart_is_enough() {
    for flaw in [Flaw::ResumesAfterItsExpiry, Flaw::BeatSkipsTheFence] {
        let report = explore(&OWNER_AND_WATCHER, flaw);
        assert_eq!(report.violation, None, "{flaw:?}");
    }
}
