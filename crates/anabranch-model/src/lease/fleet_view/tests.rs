//! Expiry as a watcher sees it, by example.

use crate::lease::fleet_snapshot::LeasePhase;
use crate::lease::fleet_view::*;
use crate::lease::kcl_probe::KclProbe;

const LEASE_TIME: u64 = 1000;

fn worker(id: &str, counter: u64, standing: WorkerStatus) -> WorkerSnapshot {
    WorkerSnapshot { id: id.into(), counter, status: standing, reads: None, lease_time_ms: None }
}

fn lease(key: &str, owner: Option<&str>, counter: u64) -> LeaseSnapshot {
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

/// One poll: the row of worker `a` (counter and status), if there is one, and the arrival of the
/// reply.
type WorkerLook = (Option<(u64, WorkerStatus)>, u64);

/// Checks the status of a lease's owner `a` after these polls.
fn check_native(looks: &[WorkerLook], now_ms: u64, expected: HolderStatus) {
    let mut view = FleetView::new(Layout::Native, LEASE_TIME, 500);
    for (row, reply_ms) in looks {
        let workers = row.iter().map(|(counter, standing)| worker("a", *counter, *standing));
        let leases = vec![lease("1", Some("a"), 7)];
        view.observe(FleetSnapshot { workers: workers.collect(), leases }, *reply_ms);
    }
    assert_eq!(view.holder(&view.leases()[0], now_ms), expected, "{looks:?} at {now_ms}");
}

#[test]
fn a_worker_is_silent_after_a_full_lease_time_without_a_beat_by_my_clock() {
    use WorkerStatus::{Active, Leaving};
    check_native(&[(Some((1, Active)), 5000)], 5000, HolderStatus::Alive);
    check_native(&[(Some((1, Active)), 5000)], 5999, HolderStatus::Alive);
    check_native(&[(Some((1, Active)), 5000)], 6000, HolderStatus::Silent);
    // The time starts at the reply that showed the change, not at later replies without one.
    check_native(
        &[(Some((1, Active)), 5000), (Some((1, Active)), 5900)],
        6000,
        HolderStatus::Silent,
    );
    check_native(
        &[(Some((1, Active)), 5000), (Some((2, Active)), 5900)],
        6000,
        HolderStatus::Alive,
    );
    check_native(
        &[(Some((1, Active)), 5000), (Some((2, Active)), 5900)],
        6900,
        HolderStatus::Silent,
    );
    // A counter that went back has changed too.
    check_native(
        &[(Some((9, Active)), 5000), (Some((1, Active)), 5900)],
        6000,
        HolderStatus::Alive,
    );
    check_native(&[(Some((1, Leaving)), 5000)], 6000, HolderStatus::Silent);
    // A clock that seems to go back ages nothing.
    check_native(&[(Some((1, Active)), 5000)], 4000, HolderStatus::Alive);
}

#[test]
fn what_a_fenced_worker_owned_is_free_at_once() {
    use WorkerStatus::{Active, Fenced};
    check_native(&[(Some((1, Fenced)), 5000)], 5000, HolderStatus::Departed);
    check_native(
        &[(Some((1, Active)), 5000), (Some((2, Fenced)), 5100)],
        5100,
        HolderStatus::Departed,
    );
}

#[test]
fn an_owner_without_a_row_is_watched_for_a_full_lease_time() {
    use WorkerStatus::Active;
    check_native(&[(None, 5000)], 5000, HolderStatus::WithoutRow);
    check_native(&[(None, 5000)], 5999, HolderStatus::WithoutRow);
    check_native(&[(None, 5000)], 6000, HolderStatus::Departed);
    check_native(&[(None, 5000), (None, 5900)], 6000, HolderStatus::Departed);
    // It had a row before: the time starts when the row was missing.
    check_native(&[(Some((1, Active)), 4000), (None, 5000)], 5999, HolderStatus::WithoutRow);
    // It had only just joined: one list was older than the other.
    check_native(&[(None, 5000), (Some((1, Active)), 5900)], 6500, HolderStatus::Alive);
    check_native(
        &[(None, 5000), (Some((1, Active)), 5500), (None, 5900)],
        6500,
        HolderStatus::WithoutRow,
    );
}

/// Checks the status of a lease's owner `a` for a watcher with [`LEASE_TIME`]. Each poll shows the
/// lease time on the owner's row, or no row.
fn check_own_time(looks: &[(Option<u64>, u64)], now_ms: u64, expected: HolderStatus) {
    let mut view = FleetView::new(Layout::Native, LEASE_TIME, 500);
    for (own_ms, reply_ms) in looks {
        let row = |ms: &u64| WorkerSnapshot {
            lease_time_ms: Some(*ms),
            ..worker("a", 1, WorkerStatus::Active)
        };
        let leases = vec![lease("1", Some("a"), 7)];
        view.observe(
            FleetSnapshot { workers: own_ms.iter().map(row).collect(), leases },
            *reply_ms,
        );
    }
    let holder = view.holder(&view.leases()[0], now_ms);
    assert_eq!(holder, expected, "{looks:?} at {now_ms}");
}

#[test]
fn a_worker_is_silent_after_its_own_lease_time_not_after_mine() {
    use HolderStatus::{Alive, Departed, Silent, WithoutRow};
    for own_ms in [1, LEASE_TIME / 6, LEASE_TIME, 6 * LEASE_TIME, 3_600_000] {
        check_own_time(&[(Some(own_ms), 5000)], 5000 + own_ms - 1, Alive);
        check_own_time(&[(Some(own_ms), 5000)], 5000 + own_ms, Silent);
        // Once its row is gone, the longer of its lease time and the watcher's applies.
        let longer_ms = own_ms.max(LEASE_TIME);
        let vanished = [(Some(own_ms), 5000), (None, 5100), (None, 5200)];
        check_own_time(&vanished, 5100 + longer_ms - 1, WithoutRow);
        check_own_time(&vanished, 5100 + longer_ms, Departed);
    }
}

#[test]
fn an_owner_that_never_had_a_row_gets_the_longest_lease_time_of_the_fleet() {
    let mut view = FleetView::new(Layout::Native, LEASE_TIME, 500);
    let other = WorkerSnapshot {
        lease_time_ms: Some(4 * LEASE_TIME),
        ..worker("b", 1, WorkerStatus::Active)
    };
    let look = |workers| FleetSnapshot { workers, leases: vec![lease("1", Some("a"), 7)] };
    view.observe(look(vec![other]), 5000);
    view.observe(look(vec![]), 5500);
    let at = |now_ms| view.holder(&view.leases()[0], now_ms);
    assert_eq!((at(8999), at(9000)), (HolderStatus::WithoutRow, HolderStatus::Departed));
}

/// Polls one row in KCL's layout: owner, counter, arrival of the reply.
fn check_kcl(
    looks: &[(Option<&str>, u64, u64)],
    now_ms: u64,
    holder: HolderStatus,
    moved: LastBeat,
) {
    let mut view = FleetView::new(Layout::Kcl, LEASE_TIME, 500);
    for (owner, counter, reply_ms) in looks {
        let leases = vec![lease("1", *owner, *counter)];
        view.observe(FleetSnapshot { workers: vec![], leases }, *reply_ms);
    }
    let lease = &view.leases()[0];
    assert_eq!((view.holder(lease, now_ms), lease.heartbeat.moved), (holder, moved), "{looks:?}");
}

#[test]
fn in_kcls_layout_each_lease_is_its_own_heart() {
    use HolderStatus::{Alive, Silent, Unowned};
    use LastBeat::{At, Never};
    // Owned at first sight: renewed now. Unowned: infinitely old.
    check_kcl(&[(Some("a"), 1, 5000)], 6000, Alive, At(5000));
    check_kcl(&[(Some("a"), 1, 5000)], 6001, Silent, At(5000));
    check_kcl(&[(None, 1, 5000)], 5000, Unowned, Never);
    check_kcl(&[(None, 1, 5000), (None, 1, 5100)], 5100, Unowned, Never);
    // Any different counter is a renewal.
    check_kcl(&[(Some("a"), 5, 5000), (Some("a"), 6, 5900)], 6500, Alive, At(5900));
    check_kcl(&[(Some("a"), 5, 5000), (Some("a"), 2, 5900)], 6500, Alive, At(5900));
    check_kcl(&[(Some("a"), 5, 5000), (Some("b"), 5, 5900)], 6500, Silent, At(5000));
    // Taken, then released: it changed when that was seen.
    check_kcl(&[(None, 1, 5000), (Some("a"), 2, 5100)], 5200, Alive, At(5100));
    check_kcl(&[(Some("a"), 1, 5000), (None, 2, 5100)], 5200, Unowned, At(5100));
}

#[test]
fn in_kcls_layout_the_id_of_our_own_workers_says_their_lease_time() {
    for own_ms in [1, LEASE_TIME / 6, LEASE_TIME, 6 * LEASE_TIME] {
        let owner = WorkerId::of_kcl_join("a", 1, own_ms);
        let looks = [(Some(owner.as_str()), 1, 5000)];
        check_kcl(&looks, 5000 + own_ms, HolderStatus::Alive, LastBeat::At(5000));
        check_kcl(&looks, 5001 + own_ms, HolderStatus::Silent, LastBeat::At(5000));
        let mut view = FleetView::new(Layout::Kcl, LEASE_TIME, 500);
        // A lease that changed at the last poll is no candidate: its owner may renew it repeatedly
        // before it expires.
        let me = "me".into();
        for (counter, reply_ms, expiry_ms) in
            [(1, 5000, None), (1, 5001, Some(5001 + own_ms)), (2, 5002, None)]
        {
            let leases = vec![lease("1", Some(owner.as_str()), counter)];
            view.observe(FleetSnapshot { workers: vec![], leases }, reply_ms);
            assert_eq!(view.next_expiry_ms(&me, reply_ms), expiry_ms);
        }
    }
}

#[test]
fn a_lease_that_has_not_moved_since_the_survey_is_as_old_as_that() {
    let counters = [("1".to_owned(), 5)].into_iter().collect();
    let survey = KclProbe { counters, ..KclProbe::default() };
    for (counter, moved, holder) in [
        (5, LastBeat::At(1000), HolderStatus::Silent),
        (6, LastBeat::At(3000), HolderStatus::Alive),
    ] {
        let mut view =
            FleetView::new(Layout::Kcl, LEASE_TIME, 500).after(ProbeBaseline::new(&survey, 1000));
        let leases = vec![lease("1", Some("java"), counter), lease("2", Some("java"), 5)];
        view.observe(FleetSnapshot { workers: vec![], leases }, 3000);
        let seen =
            |at: usize| (view.leases()[at].heartbeat.moved, view.holder(&view.leases()[at], 3000));
        assert_eq!(seen(0), (moved, holder));
        assert_eq!(
            seen(1),
            (LastBeat::At(3000), HolderStatus::Alive),
            "the survey did not show it"
        );
        // It counts for the first poll only: the row may have been deleted and recreated.
        view.observe(FleetSnapshot::default(), 3500);
        view.observe(
            FleetSnapshot { workers: vec![], leases: vec![lease("1", Some("java"), 5)] },
            4000,
        );
        assert_eq!(view.leases()[0].heartbeat.moved, LastBeat::At(4000));
    }
}

#[test]
fn a_row_that_vanished_is_new_when_it_comes_back() {
    let mut view = FleetView::new(Layout::Kcl, LEASE_TIME, 500);
    let look =
        |key: &str| FleetSnapshot { workers: vec![], leases: vec![lease(key, Some("a"), 1)] };
    view.observe(look("1"), 1000);
    view.observe(look("2"), 1500);
    view.observe(look("1"), 2500);
    assert_eq!(view.leases().len(), 1);
    assert_eq!(view.leases()[0].heartbeat.moved, LastBeat::At(2500));
}

#[test]
fn a_look_may_list_rows_in_any_order() {
    let mut view = FleetView::new(Layout::Native, LEASE_TIME, 500);
    let mut rows = vec![worker("b", 1, WorkerStatus::Active), worker("a", 1, WorkerStatus::Active)];
    let mut leases = vec![lease("2", Some("b"), 1), lease("1", None, 1), lease("3", None, 1)];
    view.observe(FleetSnapshot { workers: rows.clone(), leases: leases.clone() }, 1000);
    rows.reverse();
    leases.reverse();
    view.observe(FleetSnapshot { workers: rows, leases }, 1900);
    let keys: Vec<_> = view.leases().iter().map(|lease| lease.row.key.shard.as_str()).collect();
    assert_eq!(keys, ["1", "2", "3"]);
    assert!(view.workers().iter().all(|worker| worker.heart.moved == LastBeat::At(1000)));
    assert_eq!(view.leases()[0].free_since_ms, Some(1000));
    assert_eq!(view.leases()[1].free_since_ms, None);
}

/// Polls a lease of `a` every 300 ms with these hand-over requests and terms; the timeout is 500
/// ms.
fn check_names(looks: &[(Option<&str>, u64)], since: Option<u64>, in_vain: Option<u64>) {
    let mut view = FleetView::new(Layout::Native, LEASE_TIME, 500);
    for (i, (named, term)) in looks.iter().enumerate() {
        let row =
            LeaseSnapshot { requested: named.map(Into::into), ..lease("1", Some("a"), *term) };
        let workers = vec![worker("a", i as u64, WorkerStatus::Active)];
        view.observe(FleetSnapshot { workers, leases: vec![row] }, 300 * i as u64);
    }
    let lease = &view.leases()[0];
    assert_eq!(
        (lease.requested_since_ms, lease.unanswered_since_ms),
        (since, in_vain),
        "{looks:?}"
    );
}

#[test]
fn a_name_that_waited_too_long_is_remembered_until_the_lease_moves() {
    check_names(&[(None, 1)], None, None);
    check_names(&[(Some("b"), 1), (Some("b"), 1)], Some(0), None);
    check_names(&[(Some("b"), 1), (Some("c"), 1)], Some(300), None);
    // Withdrawn soon, because it was no longer needed.
    check_names(&[(Some("b"), 1), (None, 1)], None, None);
    // Withdrawn after 600 ms.
    check_names(&[(Some("b"), 1), (Some("b"), 1), (None, 1)], None, Some(600));
    check_names(&[(Some("b"), 1), (Some("b"), 1), (None, 1), (None, 1)], None, Some(600));
    // Handed over after 600 ms.
    check_names(&[(Some("b"), 1), (Some("b"), 1), (None, 2)], None, None);
    check_names(&[(Some("b"), 1), (Some("b"), 1), (None, 1), (None, 2)], None, None);
}
