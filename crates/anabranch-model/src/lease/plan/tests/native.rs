//! Single decisions of one worker, from tables.

use super::super::{LeaseMove, PlanSettings, PlanningWorker, plan};
use super::simulated_fleet::{LEASE_TIME, PATIENCE};
use crate::lease::fleet_snapshot::{
    FleetSnapshot, LeasePhase, LeaseSnapshot, WorkerSnapshot, WorkerStatus,
};
use crate::lease::fleet_view::FleetView;
use crate::lease::row::LeaseKey;
use crate::lease::table::Layout;
use std::collections::BTreeSet;

/// A lease: key, owner, and further state of the row.
#[derive(Clone, Copy)]
struct Row(&'static str, Option<&'static str>, &'static [On]);

/// Further state of a row.
#[derive(Clone, Copy)]
enum On {
    Named(&'static str),
    Refused,
    Finished,
    Blocked,
}
use On::{Blocked, Finished, Named, Refused};

impl Row {
    fn seen(self) -> LeaseSnapshot {
        let Row(key, owner, marks) = self;
        let mut row = LeaseSnapshot {
            key: key.into(),
            owner: owner.map(Into::into),
            counter: 7,
            phase: LeasePhase::Ready,
            requested: None,
            refused: false,
            bytes_per_second: None,
        };
        for mark in marks {
            match mark {
                Named(by) => row.requested = Some((*by).into()),
                Refused => row.refused = true,
                Finished => row.phase = LeasePhase::Finished,
                Blocked => row.phase = LeasePhase::Blocked,
            }
        }
        row
    }
}

/// A worker row whose heartbeat changes at every poll, or does not change.
#[derive(Clone, Copy)]
enum Who {
    Beats(&'static str),
    Still(&'static str),
    Leaves(&'static str),
    IsFenced(&'static str),
}
use Who::{Beats, IsFenced, Leaves, Still};

impl Who {
    fn seen(self, look: u64) -> WorkerSnapshot {
        let (id, counter, standing) = match self {
            Beats(id) => (id, look, WorkerStatus::Active),
            Still(id) => (id, 3, WorkerStatus::Active),
            Leaves(id) => (id, look, WorkerStatus::Leaving),
            IsFenced(id) => (id, 3, WorkerStatus::Fenced),
        };
        WorkerSnapshot {
            id: id.into(),
            counter,
            status: standing,
            reads: None,
            lease_time_ms: None,
        }
    }
}

/// Time for which a free lease waits after a worker has joined.
const SETTLE: u64 = 100;

/// Returns the plan of `me`, which runs `running`, after it has watched this table for
/// `watched_ms`.
fn planned(workers: &[Who], rows: &[Row], running: &[&str], watched_ms: u64) -> Vec<LeaseMove> {
    let mut view = FleetView::new(Layout::Native, LEASE_TIME, PATIENCE);
    let looks = [0, watched_ms];
    for (look, at) in looks.iter().enumerate() {
        let workers = workers.iter().map(|who| who.seen(look as u64)).collect();
        let leases = rows.iter().map(|row| row.seen()).collect();
        view.observe(FleetSnapshot { workers, leases }, 1000 + at);
    }
    let running: BTreeSet<LeaseKey> = running.iter().map(|key| (*key).into()).collect();
    let me = PlanningWorker { id: &"me".into(), running: &running };
    let settings = PlanSettings { join_settle_ms: SETTLE, ..PlanSettings::default() };
    plan(&view, me, 1000 + watched_ms, 11, &settings)
}

/// Formats a plan as short strings, in order.
fn words(moves: &[LeaseMove]) -> Vec<String> {
    let word = |planned: &LeaseMove| match planned {
        LeaseMove::Fence { worker, counter } => format!("fence {worker} at {counter}"),
        LeaseMove::WithdrawRequest { lease, taker, .. } => {
            format!("withdraw {taker} from {}", lease.shard)
        }
        LeaseMove::HandOver { lease, to, .. } => format!("pass {} to {to}", lease.shard),
        LeaseMove::Retake { lease, .. } => format!("take again {}", lease.shard),
        LeaseMove::Release { lease, .. } => format!("release {}", lease.shard),
        LeaseMove::Take { lease, .. } => format!("take {}", lease.shard),
        LeaseMove::RequestHandOver { lease, .. } => format!("name {}", lease.shard),
        LeaseMove::Steal { lease, .. } => format!("steal {}", lease.shard),
    };
    let mut words: Vec<_> = moves.iter().map(word).collect();
    words.sort();
    words
}

fn check(workers: &[Who], rows: &[Row], running: &[&str], expected: &[&str]) {
    check_after(SETTLE, workers, rows, running, expected);
}

#[track_caller]
fn check_after(ms: u64, workers: &[Who], rows: &[Row], running: &[&str], expected: &[&str]) {
    assert_eq!(words(&planned(workers, rows, running, ms)), expected);
}

const MINE: Option<&str> = Some("me");
const BOBS: Option<&str> = Some("bob");
const FREE: Option<&str> = None;

#[test]
fn a_free_lease_is_taken_and_a_held_one_is_asked_for() {
    let both = [Beats("bob"), Beats("me")];
    check(&both[1..], &[Row("1", FREE, &[])], &[], &["take 1"]);
    // The worker with fewer leases gets the free one.
    check(&both, &[Row("1", BOBS, &[]), Row("2", FREE, &[])], &[], &["take 2"]);
    check(&both, &[Row("1", MINE, &[]), Row("2", FREE, &[])], &["1"], &[]);
    // bob's heartbeat changes: however many leases it has, they are only requested.
    let three = [Row("1", BOBS, &[]), Row("2", BOBS, &[]), Row("3", BOBS, &[])];
    check(&both, &three, &[], &["name 1"]);
    check(&both, &three[..2], &[], &["name 1"]);
    check(&both, &three[..1], &[], &[]);
}

#[test]
fn a_free_lease_waits_until_no_worker_is_new() {
    let both = [Beats("bob"), Beats("me")];
    let rows = [Row("1", BOBS, &[]), Row("2", FREE, &[]), Row("3", MINE, &[]), Row("4", FREE, &[])];
    check_after(SETTLE - 1, &both, &rows, &["3"], &[]);
    assert_eq!(planned(&both, &rows, &["3"], SETTLE).len(), 1);
    // Leases of this or of another worker do not wait.
    check_after(1, &both, &[Row("1", MINE, &[])], &[], &["take again 1"]);
    check_after(1, &both, &[Row("1", BOBS, &[]), Row("2", BOBS, &[])], &[], &["name 1"]);
}

#[test]
fn newcomers_without_end_do_not_keep_a_lease_free() {
    let mut view = FleetView::new(Layout::Native, LEASE_TIME, PATIENCE);
    let mut took = None;
    for look in 0..100 {
        let mut workers = vec![Beats("me").seen(look)];
        let id = format!("newcomer-{look:03}").as_str().into();
        workers.push(WorkerSnapshot { id, counter: 0, ..Still("").seen(0) });
        let leases = (0..9).map(|i| LeaseSnapshot {
            key: LeaseKey::new("s", i.to_string()),
            ..Row("", FREE, &[]).seen()
        });
        let now_ms = look * SETTLE / 2;
        view.observe(FleetSnapshot { workers, leases: leases.collect() }, now_ms);
        let settings = PlanSettings { join_settle_ms: SETTLE, ..PlanSettings::default() };
        let me = PlanningWorker { id: &"me".into(), running: &BTreeSet::new() };
        let takes = plan(&view, me, now_ms, look, &settings).len();
        took = took.or((takes > 0).then_some(now_ms));
    }
    assert_eq!(took, Some(SETTLE * 10));
}

#[test]
fn a_silent_worker_is_fenced_before_anything_of_it_is_taken() {
    let still = [Still("bob"), Beats("me")];
    let rows = [Row("1", BOBS, &[]), Row("2", MINE, &[])];
    check_after(LEASE_TIME - 1, &still, &rows, &["2"], &[]);
    check_after(LEASE_TIME, &still, &rows, &["2"], &["fence bob at 3"]);
    check(&[IsFenced("bob"), Beats("me")], &rows, &["2"], &["take 1"]);
    // Only one of two watchers fences at once.
    let watchers = |me: Who, other: Who| [Still("bob"), other, me];
    let at_once = words(&planned(&watchers(Beats("me"), Beats("you")), &rows, &["2"], LEASE_TIME));
    let later =
        words(&planned(&watchers(Beats("me"), Beats("you")), &rows, &["2"], LEASE_TIME * 5 / 4));
    assert!(at_once.len() <= 1);
    assert_eq!(later, ["fence bob at 3"]);
}

/// Returns the plan after polls of `bob`, whose counter stays at 3 and whose row has a lease time.
fn fence_of_bob(own_ms: u64, watched_ms: u64) -> Vec<String> {
    let mut view = FleetView::new(Layout::Native, LEASE_TIME, PATIENCE);
    for (look, at_ms) in [0, watched_ms].into_iter().enumerate() {
        let bob = WorkerSnapshot { lease_time_ms: Some(own_ms), ..Still("bob").seen(0) };
        let workers = vec![bob, Beats("me").seen(look as u64)];
        let leases = vec![Row("1", BOBS, &[]).seen()];
        view.observe(FleetSnapshot { workers, leases }, 1000 + at_ms);
    }
    let me = PlanningWorker { id: &"me".into(), running: &BTreeSet::new() };
    words(&plan(&view, me, 1000 + watched_ms, 11, &PlanSettings::default()))
}

#[test]
fn a_silent_worker_is_fenced_after_the_lease_time_on_its_row() {
    for own_ms in [LEASE_TIME / 6, LEASE_TIME, 6 * LEASE_TIME] {
        assert_eq!(fence_of_bob(own_ms, own_ms - 1), [""; 0], "{own_ms}");
        assert_eq!(fence_of_bob(own_ms, own_ms), ["fence bob at 3"], "{own_ms}");
    }
}

#[test]
fn an_owner_without_a_row_keeps_its_leases_for_a_lease_time() {
    let alone = [Beats("me")];
    let rows = [Row("1", BOBS, &[])];
    check_after(LEASE_TIME - 1, &alone, &rows, &[], &[]);
    check_after(LEASE_TIME, &alone, &rows, &[], &["take 1"]);
}

#[test]
fn finished_and_blocked_shards_do_not_count_and_are_not_moved() {
    let both = [Beats("bob"), Beats("me")];
    let done =
        [Row("1", BOBS, &[Finished]), Row("2", BOBS, &[Finished]), Row("3", BOBS, &[Finished])];
    check(&both, &done, &[], &[]);
    let rows = [&done[..], &[Row("4", BOBS, &[]), Row("5", BOBS, &[])]].concat();
    check(&both, &rows, &[], &["name 4"]);
    let rows = [&done[..], &[Row("4", MINE, &[]), Row("5", FREE, &[Blocked])]].concat();
    check(&both, &rows, &["4"], &[]);
    check(&both, &[Row("1", FREE, &[Finished]), Row("2", FREE, &[Blocked])], &[], &[]);
}

#[test]
fn what_names_me_and_does_not_run_is_taken_again_or_given_back() {
    let both = [Beats("bob"), Beats("me")];
    check(&both, &[Row("1", MINE, &[])], &[], &["take again 1"]);
    check(&both, &[Row("1", MINE, &[Blocked])], &[], &["release 1"]);
    check(&both, &[Row("1", MINE, &[Finished])], &[], &[]);
    // The share is two, so the third is surplus.
    let rows = [Row("1", MINE, &[]), Row("2", MINE, &[]), Row("3", MINE, &[]), Row("4", BOBS, &[])];
    check(&both, &rows, &["2", "3"], &["release 1"]);
    check(&[Beats("bob"), Leaves("me")], &rows[..1], &[], &["release 1"]);
}

#[test]
fn an_owner_passes_what_a_living_worker_asks_for() {
    let both = [Beats("bob"), Beats("me")];
    let asked = [Row("1", MINE, &[Named("bob")]), Row("2", MINE, &[])];
    check(&both, &asked, &["1", "2"], &["pass 1 to bob"]);
    check(&both, &asked, &["2"], &["pass 1 to bob"]);
    check(&[Beats("bob"), Leaves("me")], &asked, &["1", "2"], &["pass 1 to bob"]);
    // A requester that can no longer take the lease keeps others from requesting it.
    check(&[Leaves("bob"), Beats("me")], &asked, &["1", "2"], &["withdraw bob from 1"]);
    check(&[IsFenced("bob"), Beats("me")], &asked, &["1", "2"], &["withdraw bob from 1"]);
    check_after(
        LEASE_TIME,
        &[Still("bob"), Beats("me")],
        &asked,
        &["1", "2"],
        &["fence bob at 3", "withdraw bob from 1"],
    );
    // A requester that is not listed may have joined just now.
    check(&[Beats("me")], &asked, &["1", "2"], &[]);
    check_after(LEASE_TIME, &[Beats("me")], &asked, &["1", "2"], &["withdraw bob from 1"]);
}

#[test]
fn a_name_is_withdrawn_when_it_is_refused_unanswered_or_not_needed() {
    let both = [Beats("bob"), Beats("me")];
    let asked = [Row("1", BOBS, &[Named("me")]), Row("2", BOBS, &[])];
    check(&both, &asked, &[], &[]);
    check_after(PATIENCE - 1, &both, &asked, &[], &[]);
    check_after(PATIENCE, &both, &asked, &[], &["withdraw me from 1"]);
    let refused = [Row("1", BOBS, &[Named("me"), Refused]), Row("2", BOBS, &[Refused])];
    check(&both, &refused, &[], &["withdraw me from 1"]);
    let enough = [Row("1", BOBS, &[Named("me")]), Row("2", MINE, &[]), Row("3", MINE, &[])];
    check(&both, &enough[..2], &["2"], &["withdraw me from 1"]);
    check(&both, &enough, &["2", "3"], &["withdraw me from 1"]);
    check(&[Beats("bob"), Leaves("me")], &asked, &[], &["withdraw me from 1"]);
    // A silent owner does not answer: it is fenced, and the take ends the request.
    check_after(LEASE_TIME, &[Still("bob"), Beats("me")], &asked, &[], &["fence bob at 3"]);
}

#[test]
fn a_refused_lease_and_one_that_another_asked_for_are_left_out() {
    let three = [Beats("bob"), Beats("me"), Beats("you")];
    let rows = [Row("1", BOBS, &[Refused]), Row("2", BOBS, &[Refused]), Row("3", BOBS, &[])];
    // bob can give one lease only. The worker with the lower name gets it.
    check(&three, &rows, &[], &["name 3"]);
    let rows = [Row("1", BOBS, &[Named("you")]), Row("2", BOBS, &[]), Row("3", BOBS, &[])];
    check(&three, &rows, &[], &["name 2"]);
}

#[test]
fn leases_of_the_dead_count_before_they_are_free() {
    // bob has its half of the six already, so the missing lease comes from dan.
    let workers = [Beats("bob"), Still("dan"), Beats("me")];
    let bobs = [Row("1", BOBS, &[]), Row("2", BOBS, &[]), Row("3", BOBS, &[])];
    let dans = [Row("5", Some("dan"), &[]), Row("6", Some("dan"), &[])];
    let rows = [&bobs[..], &[Row("4", MINE, &[])], &dans].concat();
    check_after(LEASE_TIME * 5 / 4, &workers, &rows, &["4"], &["fence dan at 3"]);
}

#[test]
fn a_worker_with_too_many_gives_up_its_names_before_its_leases() {
    let workers = [Beats("bob"), Beats("eve"), Beats("me")];
    let bobs = [Row("1", BOBS, &[]), Row("2", BOBS, &[])];
    let eve = Some("eve");
    let eves = [Row("3", eve, &[Named("bob")]), Row("4", eve, &[]), Row("5", eve, &[])];
    // bob is one above its share. It will withdraw its request for 3, which this worker requests
    // then.
    check(&workers, &[&bobs[..], &eves].concat(), &[], &[]);
}

#[test]
fn a_worker_that_leaves_counts_no_more_and_its_leases_are_asked_for() {
    let rows = [Row("1", BOBS, &[]), Row("2", BOBS, &[]), Row("3", FREE, &[])];
    check(&[Leaves("bob"), Beats("me")], &rows, &[], &["name 1", "name 2", "take 3"]);
    // It takes and requests nothing itself.
    check(&[Beats("bob"), Leaves("me")], &rows, &[], &[]);
}

#[test]
fn a_worker_that_is_fenced_or_unlisted_does_nothing() {
    let rows = [Row("1", FREE, &[]), Row("2", MINE, &[])];
    check(&[IsFenced("me")], &rows, &[], &[]);
    check(&[Beats("bob")], &rows, &[], &[]);
}

#[test]
fn every_move_carries_the_term_that_was_seen() {
    let rows = [Row("1", FREE, &[]), Row("2", BOBS, &[]), Row("3", BOBS, &[]), Row("4", BOBS, &[])];
    let moves = planned(&[Beats("bob"), Beats("me")], &rows, &[], 100);
    let expected = [
        LeaseMove::Take { lease: "1".into(), term: 7 },
        LeaseMove::RequestHandOver { lease: "2".into(), term: 7 },
    ];
    assert_eq!(moves, expected);
}
