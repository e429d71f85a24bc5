//! KCL's taker by example: targets, steals, very old leases, limits.

use super::*;
use crate::lease::fleet_snapshot::{FleetSnapshot, LeasePhase, LeaseSnapshot};
use crate::lease::plan::Kcl2Settings;
use crate::lease::row::LeaseKey;
use crate::lease::table::Layout;
use std::collections::BTreeSet;

const LEASE_TIME: u64 = 1000;
const NOW: u64 = 1_000_000;

/// Age of the last renewal that was seen.
#[derive(Clone, Copy, Debug)]
enum Renewed {
    Now,
    Ago(u64),
}
use Renewed::{Ago, Now};

/// A table of leases: key, owner, renewal. Unowned rows have never been renewed.
type Table<'a> = &'a [(&'a str, Option<&'a str>, Renewed)];

fn row(key: &str, owner: Option<&str>, counter: u64) -> LeaseSnapshot {
    LeaseSnapshot {
        key: key.into(),
        owner: owner.map(Into::into),
        counter,
        phase: LeasePhase::Ready,
        requested: None,
        refused: false,
        bytes_per_second: None,
    }
}

/// Returns the view of a worker that saw each row renewed when the table says so, and scanned at
/// `NOW`.
fn view(table: Table<'_>) -> FleetView {
    let mut view = FleetView::new(Layout::Kcl, LEASE_TIME, 0);
    let ago = |renewed| match renewed {
        Now => 0,
        Ago(ms) => ms,
    };
    let mut times: BTreeSet<u64> = table.iter().map(|row| NOW - ago(row.2)).collect();
    times.insert(NOW);
    for reply_ms in times {
        let seen = table.iter().map(|(key, owner, renewed)| {
            row(key, *owner, u64::from(owner.is_some() && reply_ms >= NOW - ago(*renewed)))
        });
        view.observe(FleetSnapshot { workers: vec![], leases: seen.collect() }, reply_ms);
    }
    view
}

fn keys(moves: &[LeaseMove]) -> BTreeSet<LeaseKey> {
    moves.iter().filter_map(LeaseMove::lease).cloned().collect()
}

/// Expected moves of the worker `foo`.
#[derive(Debug)]
enum Expected<'a> {
    /// It takes exactly these.
    Takes(&'a [&'a str]),
    /// It takes this many of these.
    TakesSome(usize, &'a [&'a str]),
    /// It steals this many from this worker.
    Steals(usize, &'a str),
}
use Expected::{Steals, Takes, TakesSome};

fn check(
    name: &str,
    table: Table<'_>,
    settings: &PlanSettings,
    target: usize,
    expected: &Expected<'_>,
) {
    let view = view(table);
    for tie_break in 0..20 {
        let round = round(&view, &"foo".into(), NOW, tie_break, settings);
        assert_eq!(round.target, target, "{name}");
        let got = &round.moves;
        let is_take = |m: &LeaseMove| matches!(m, LeaseMove::Take { .. });
        let fits =
            match expected {
                Takes(expected) => {
                    got.iter().all(is_take)
                        && keys(got) == expected.iter().map(|key| (*key).into()).collect()
                }
                TakesSome(count, of) => {
                    got.len() == *count
                        && got.iter().all(is_take)
                        && keys(got).iter().all(|key| of.contains(&key.shard.as_str()))
                }
                Steals(count, victim) => got.len() == *count
                    && got.iter().all(
                        |m| matches!(m, LeaseMove::Steal { from, .. } if from.as_str() == *victim),
                    ),
            };
        assert!(fits, "{name}: expected {expected:?}, got {got:?}");
    }
}

fn defaults() -> PlanSettings {
    PlanSettings::default()
}

fn without_priority() -> PlanSettings {
    PlanSettings {
        kcl2: Kcl2Settings { very_old_first: false, ..Kcl2Settings::default() },
        ..defaults()
    }
}

fn owned<'a>(owner: &'a str, keys: &[&'a str]) -> Vec<(&'a str, Option<&'a str>, Renewed)> {
    keys.iter().map(|key| (*key, Some(owner), Now)).collect()
}

#[test]
fn what_is_unowned_or_expired_is_taken_up_to_the_target() {
    let d = defaults();
    let no_priority = without_priority();
    check("an unowned lease", &[("1", None, Now)], &d, 1, &Takes(&["1"]));
    check("a renewed lease", &[("1", Some("bar"), Ago(1000))], &d, 1, &Takes(&[]));
    check("an expired lease", &[("1", Some("bar"), Ago(1001))], &d, 1, &Takes(&["1"]));
    check("my own expired lease", &[("1", Some("foo"), Ago(1001))], &d, 1, &Takes(&["1"]));
    check("no leases", &[], &d, 0, &Takes(&[]));
    let three_free =
        [("0", None, Now), ("1", None, Now), ("2", None, Now), ("4", Some("bar"), Now)];
    check("not greedy", &three_free, &no_priority, 2, &TakesSome(2, &["0", "1", "2"]));
    check("unowned is very old", &three_free, &d, 2, &Takes(&["0", "1", "2"]));
    let one_free = [
        ("1", None, Now),
        ("2", Some("bar"), Now),
        ("3", Some("bar"), Now),
        ("4", Some("bar"), Now),
    ];
    check("no steal beside a take", &one_free, &no_priority, 2, &Takes(&["1"]));
    check(
        "more workers than leases",
        &[("1", None, Now), ("2", Some("bar"), Now)],
        &no_priority,
        1,
        &Takes(&["1"]),
    );
}

#[test]
fn very_old_leases_go_first_and_alone() {
    let d = defaults();
    // More than three lease times; exactly three is not very old yet.
    let table =
        [("2", Some("foo"), Now), ("3", Some("bar"), Ago(3001)), ("4", Some("baz"), Ago(3000))];
    check("one very old", &table, &d, 3, &Takes(&["3"]));
    let later = PlanSettings {
        kcl2: Kcl2Settings { very_old_lease_times: 5, ..d.kcl2.clone() },
        ..d.clone()
    };
    check("another multiple", &table, &later, 3, &Takes(&["3", "4"]));
    let table = [
        ("2", Some("bar"), Now),
        ("3", Some("bar"), Now),
        ("4", Some("bar"), Now),
        ("5", Some("baz"), Ago(3001)),
        ("6", Some("baz"), Ago(2999)),
        ("7", None, Now),
    ];
    check("priority off", &table, &without_priority(), 3, &Takes(&["5", "6", "7"]));
    check("priority on", &table, &d, 3, &Takes(&["5", "7"]));
    // The maximum counts: if it allows no very old lease, nothing is taken.
    let max = |max_leases| PlanSettings { max_leases, ..d.clone() };
    check("max leaves room for one", &table, &max(1), 1, &TakesSome(1, &["5", "7"]));
    let full =
        [("1", Some("foo"), Now), ("2", Some("bar"), Ago(3001)), ("3", Some("bar"), Ago(1001))];
    check("max leaves no room", &full, &max(1), 1, &Takes(&[]));
}

#[test]
fn a_steal_takes_from_the_most_loaded_at_or_above_the_target() {
    let d = defaults();
    let steal = |max_steal| PlanSettings {
        kcl2: Kcl2Settings { max_steal, ..d.kcl2.clone() },
        ..d.clone()
    };
    let table = [owned("bar", &["1"]), owned("baz", &["2", "3", "4", "5", "6"])].concat();
    check("five of six", &table, &d, 2, &Steals(1, "baz"));
    check("up to what is needed", &table, &steal(10), 2, &Steals(2, "baz"));
    let table =
        [owned("bar", &["1", "2"]), owned("baz", &["3", "4"]), owned("foo", &["5"])].concat();
    check("off by one", &table, &steal(10), 2, &Takes(&[]));
    // bar and baz are at the target of 3 and foo lacks 2: one.
    let table =
        [owned("bar", &["1", "2", "3"]), owned("baz", &["4", "5", "6"]), owned("foo", &["7"])]
            .concat();
    check("equal to the target, two short", &table, &steal(10), 3, &Steals(1, "bar"));
    // The same with 2 of 3: one short of the target, nothing.
    let table =
        [owned("bar", &["1", "2", "3"]), owned("baz", &["4", "5", "6"]), owned("foo", &["7", "8"])]
            .concat();
    check("equal to the target, one short", &table, &steal(10), 3, &Takes(&[]));
    // At most the surplus above the target.
    let table =
        [owned("bar", &["1", "2", "3", "4", "5"]), owned("baz", &["6", "7", "8", "9"])].concat();
    check("one over the target", &table, &steal(10), 3, &Steals(2, "bar"));
    check(
        "two workers, four each",
        &owned("bar", &["1", "2", "3", "4"]),
        &steal(10),
        2,
        &Steals(2, "bar"),
    );
    check("one lease, two workers", &owned("bar", &["1"]), &steal(10), 1, &Takes(&[]));
}

#[test]
fn the_target_is_the_ceiling_within_the_maximum() {
    for (leases, workers, max, expected) in [
        (1, 1, 9, (1, 0)),
        (1, 5, 9, (1, 0)),
        (5, 5, 9, (1, 0)),
        (6, 5, 9, (2, 0)),
        (10, 5, 9, (2, 0)),
        (11, 5, 9, (3, 0)),
        (10, 1, 9, (9, 1)),
        (100, 3, 9, (9, 25)),
        (100, 3, 34, (34, 0)),
    ] {
        assert_eq!(target(leases, workers, max), expected, "{leases} leases, {workers} workers");
    }
}

#[test]
fn finished_leases_count_and_are_taken_like_any_other() {
    let mut view = FleetView::new(Layout::Kcl, LEASE_TIME, 0);
    let finished = |key| LeaseSnapshot { phase: LeasePhase::Finished, ..row(key, None, 0) };
    let leases = vec![finished("1"), finished("2")];
    view.observe(FleetSnapshot { workers: vec![], leases }, NOW);
    let round = round(&view, &"foo".into(), NOW, 1, &without_priority());
    assert_eq!((round.target, round.available, round.moves.len()), (2, 2, 2));
}

#[test]
fn a_lease_is_very_old_after_lease_times_of_its_owner() {
    let owner = WorkerId::of_kcl_join("a", 1, 6 * LEASE_TIME);
    let mut view = FleetView::new(Layout::Kcl, LEASE_TIME, 0);
    let leases = vec![row("1", Some(owner.as_str()), 1)];
    view.observe(FleetSnapshot { workers: vec![], leases }, NOW);
    let very_old = |now_ms| round(&view, &"me".into(), now_ms, 1, &defaults()).very_old;
    assert_eq!(very_old(NOW + 18 * LEASE_TIME), 0);
    assert_eq!(very_old(NOW + 18 * LEASE_TIME + 1), 1);
}

#[test]
fn an_old_scan_expires_nothing() {
    let view = view(&[("1", Some("bar"), Now), ("2", Some("bar"), Now)]);
    let later = round(&view, &"foo".into(), NOW + 2000, 1, &defaults());
    assert_eq!(later.available, 0);
}

#[test]
fn the_tie_break_spreads_the_choices() {
    let names: Vec<String> = (0..50).map(|i| format!("{i:02}")).collect();
    let table: Vec<_> = names.iter().map(|name| (name.as_str(), None, Now)).collect();
    let view = view(&table);
    let settings = PlanSettings { max_leases: 5, ..defaults() };
    let choices: BTreeSet<_> =
        (0..20).map(|tie| keys(&round(&view, &"foo".into(), NOW, tie, &settings).moves)).collect();
    assert!(choices.len() > 15, "{choices:?}");
    let again = |tie| round(&view, &"foo".into(), NOW, tie, &settings);
    assert_eq!(again(7), again(7));
}

/// Returns the ids of workers that support hand-over.
fn ours<const N: usize>(names: [&str; N]) -> [WorkerId; N] {
    names.map(|name| WorkerId::of_kcl_join(name, 1, LEASE_TIME))
}

/// A lease that `taker` has requested from its owner.
fn asked(key: &str, owner: &WorkerId, taker: &WorkerId) -> LeaseSnapshot {
    LeaseSnapshot { requested: Some(taker.clone()), ..row(key, Some(owner.as_str()), 1) }
}

fn held(keys: &[&str], owner: &WorkerId) -> Vec<LeaseSnapshot> {
    keys.iter().map(|key| row(key, Some(owner.as_str()), 1)).collect()
}

fn seen(leases: Vec<LeaseSnapshot>) -> FleetView {
    let mut view = FleetView::new(Layout::Kcl, LEASE_TIME, 30 * LEASE_TIME);
    view.observe(FleetSnapshot { workers: vec![], leases }, NOW);
    view
}

/// Returns the number of leases that `me` requests and the number that it steals.
fn asks_and_steals(leases: Vec<LeaseSnapshot>, me: &WorkerId) -> (usize, usize) {
    let moves = round(&seen(leases), me, NOW, 3, &defaults()).moves;
    let is_name = |step: &&LeaseMove| matches!(step, LeaseMove::RequestHandOver { .. });
    let is_steal = |step: &&LeaseMove| matches!(step, LeaseMove::Steal { .. });
    assert_eq!(keys(&moves).len(), moves.len(), "each lease once: {moves:?}");
    (moves.iter().filter(is_name).count(), moves.iter().filter(is_steal).count())
}

#[test]
fn a_worker_that_hands_over_is_asked_for_all_that_the_target_leaves() {
    let [me, a, b, c] = ours(["me", "a", "b", "c"]);
    let eight = ["1", "2", "3", "4", "5", "6", "7", "8"];
    let check = |name: &str, leases: Vec<LeaseSnapshot>, expected: (usize, usize)| {
        assert_eq!(asks_and_steals(leases, &me), expected, "{name}");
    };
    check("half of eight", held(&eight, &a), (4, 0));
    check("from both", [held(&eight[..4], &a), held(&eight[4..], &b)].concat(), (2, 0));
    check("none short", [held(&eight[..4], &a), held(&eight[4..], &me)].concat(), (0, 0));
    // Eight leases of a Java worker: one at a time, as KCL does.
    check("Java is not asked", held(&eight, &"java".into()), (0, 1));
    // The worker with the most leases comes first.
    let java = held(&eight[..5], &"java".into());
    check("Java has most", [java, held(&eight[5..], &a)].concat(), (0, 1));
    let java = held(&eight[..2], &"java".into());
    check("a has most", [java, held(&eight[2..], &a)].concat(), (3, 0));
    // At the target, and `me` lacks more than one.
    let level = [held(&["1", "2", "3"], &a), held(&["4", "5", "6"], &b), held(&["7"], &me)];
    check("one of two workers at the target", level.concat(), (1, 0));
    // A requested lease counts for the requester.
    let mine = ["5", "6", "7", "8"].map(|key| asked(key, &a, &me)).to_vec();
    check("all asked for", [held(&eight[..4], &a), mine].concat(), (0, 0));
    let theirs = ["5", "6", "7", "8"].map(|key| asked(key, &a, &c)).to_vec();
    check("another asks too", [held(&eight[..4], &a), theirs].concat(), (2, 0));
    // An owner that refuses is left alone, and nothing is stolen instead.
    let mut refused = held(&eight, &a);
    for lease in &mut refused {
        lease.refused = true;
    }
    check("all refused", refused, (0, 0));
}

#[test]
fn a_lease_that_names_me_is_passed_or_run_and_a_name_in_vain_is_withdrawn() {
    let [me, a] = ours(["me", "a"]);
    let running: BTreeSet<LeaseKey> = ["1".into(), "2".into()].into();
    let of_me = PlanningWorker { id: &me, running: &running };
    let leases = vec![asked("1", &me, &a), row("2", Some(me.as_str()), 1)];
    let mut view = seen([leases, held(&["3"], &me), vec![asked("4", &a, &me)]].concat());
    let moves = super::plan(&view, of_me, NOW, 1, &defaults());
    let pass = LeaseMove::HandOver { lease: "1".into(), term: 1, to: a.clone() };
    let again = LeaseMove::Retake { lease: "3".into(), term: 1 };
    assert_eq!(moves, [pass, again]);
    // The owner keeps renewing and does not hand over.
    for beat in 2..=40 {
        let mut lease = asked("4", &a, &me);
        lease.counter = beat;
        let leases = [held(&["1", "2", "3"], &me), vec![lease]].concat();
        let now_ms = NOW + beat * LEASE_TIME;
        view.observe(FleetSnapshot { workers: vec![], leases }, now_ms);
        let moves = super::plan(&view, of_me, now_ms, 1, &defaults());
        let withdrawn = moves
            .iter()
            .any(|step| matches!(step, LeaseMove::WithdrawRequest { term, .. } if *term == beat));
        assert_eq!(withdrawn, beat >= 30, "after {beat} lease times: {moves:?}");
    }
    let mut lease = row("4", Some(a.as_str()), 41);
    lease.counter = 41;
    let leases = [held(&["1"], &me), held(&["2", "3"], &a), vec![lease]].concat();
    view.observe(FleetSnapshot { workers: vec![], leases }, NOW + 41 * LEASE_TIME);
    let moves = super::plan(&view, of_me, NOW + 41 * LEASE_TIME, 1, &defaults());
    let four: LeaseKey = "4".into();
    assert!(moves.iter().all(|step| step.lease() != Some(&four)), "not asked again: {moves:?}");
}
