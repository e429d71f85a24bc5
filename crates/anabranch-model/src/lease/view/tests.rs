//! Expiry as a watcher sees it, by example.

use super::*;
use crate::lease::snapshot::Phase;
use crate::lease::survey::Survey;

const LEASE_TIME: u64 = 1000;

fn worker(id: &str, counter: u64, standing: Standing) -> WorkerSeen {
    WorkerSeen { id: id.into(), counter, standing, reads: None, lease_time_ms: None }
}

fn lease(key: &str, owner: Option<&str>, counter: u64) -> LeaseSeen {
    LeaseSeen {
        key: key.into(),
        owner: owner.map(Into::into),
        counter,
        phase: Phase::Ready,
        named: None,
        refused: false,
        bytes_per_second: None,
    }
}

/// One look: the worker `a` (counter and standing, or no row), and when the reply arrived.
type WorkerLook = (Option<(u64, Standing)>, u64);

/// Who stands behind a lease of `a` after these looks.
fn check_native(looks: &[WorkerLook], now_ms: u64, expected: Holder) {
    let mut view = View::new(Layout::Native, LEASE_TIME, 500);
    for (row, reply_ms) in looks {
        let workers = row.iter().map(|(counter, standing)| worker("a", *counter, *standing));
        let leases = vec![lease("1", Some("a"), 7)];
        view.observe(Snapshot { workers: workers.collect(), leases }, *reply_ms);
    }
    assert_eq!(view.holder(&view.leases()[0], now_ms), expected, "{looks:?} at {now_ms}");
}

#[test]
fn a_worker_is_silent_after_a_full_lease_time_without_a_beat_by_my_clock() {
    use Standing::{Active, Leaving};
    check_native(&[(Some((1, Active)), 5000)], 5000, Holder::Beating);
    check_native(&[(Some((1, Active)), 5000)], 5999, Holder::Beating);
    check_native(&[(Some((1, Active)), 5000)], 6000, Holder::Silent);
    // The time starts at the reply that showed the change, not at later looks that don't.
    check_native(&[(Some((1, Active)), 5000), (Some((1, Active)), 5900)], 6000, Holder::Silent);
    check_native(&[(Some((1, Active)), 5000), (Some((2, Active)), 5900)], 6000, Holder::Beating);
    check_native(&[(Some((1, Active)), 5000), (Some((2, Active)), 5900)], 6900, Holder::Silent);
    // A counter that went back was moved too.
    check_native(&[(Some((9, Active)), 5000), (Some((1, Active)), 5900)], 6000, Holder::Beating);
    check_native(&[(Some((1, Leaving)), 5000)], 6000, Holder::Silent);
    // A clock that seems to go back ages nothing.
    check_native(&[(Some((1, Active)), 5000)], 4000, Holder::Beating);
}

#[test]
fn what_a_fenced_worker_owned_is_free_at_once() {
    use Standing::{Active, Fenced};
    check_native(&[(Some((1, Fenced)), 5000)], 5000, Holder::Gone);
    check_native(&[(Some((1, Active)), 5000), (Some((2, Fenced)), 5100)], 5100, Holder::Gone);
}

#[test]
fn an_owner_without_a_row_is_watched_for_a_full_lease_time() {
    use Standing::Active;
    check_native(&[(None, 5000)], 5000, Holder::Rowless);
    check_native(&[(None, 5000)], 5999, Holder::Rowless);
    check_native(&[(None, 5000)], 6000, Holder::Gone);
    check_native(&[(None, 5000), (None, 5900)], 6000, Holder::Gone);
    // It had a row before: the time starts when it was missing.
    check_native(&[(Some((1, Active)), 4000), (None, 5000)], 5999, Holder::Rowless);
    // It had only just joined: one list was older than the other.
    check_native(&[(None, 5000), (Some((1, Active)), 5900)], 6500, Holder::Beating);
    check_native(&[(None, 5000), (Some((1, Active)), 5500), (None, 5900)], 6500, Holder::Rowless);
}

/// Who stands behind a lease of `a` for a watcher with [`LEASE_TIME`], after looks that showed the
/// lease time on its row, or no row.
fn check_own_time(looks: &[(Option<u64>, u64)], now_ms: u64, expected: Holder) {
    let mut view = View::new(Layout::Native, LEASE_TIME, 500);
    for (own_ms, reply_ms) in looks {
        let row =
            |ms: &u64| WorkerSeen { lease_time_ms: Some(*ms), ..worker("a", 1, Standing::Active) };
        let leases = vec![lease("1", Some("a"), 7)];
        view.observe(Snapshot { workers: own_ms.iter().map(row).collect(), leases }, *reply_ms);
    }
    let holder = view.holder(&view.leases()[0], now_ms);
    assert_eq!(holder, expected, "{looks:?} at {now_ms}");
}

#[test]
fn a_worker_is_silent_after_its_own_lease_time_not_after_mine() {
    use Holder::{Beating, Gone, Rowless, Silent};
    for own_ms in [1, LEASE_TIME / 6, LEASE_TIME, 6 * LEASE_TIME, 3_600_000] {
        check_own_time(&[(Some(own_ms), 5000)], 5000 + own_ms - 1, Beating);
        check_own_time(&[(Some(own_ms), 5000)], 5000 + own_ms, Silent);
        // Once its row is gone it gets the longer of its lease time and mine.
        let longer_ms = own_ms.max(LEASE_TIME);
        let vanished = [(Some(own_ms), 5000), (None, 5100), (None, 5200)];
        check_own_time(&vanished, 5100 + longer_ms - 1, Rowless);
        check_own_time(&vanished, 5100 + longer_ms, Gone);
    }
}

#[test]
fn an_owner_that_never_had_a_row_gets_the_longest_lease_time_of_the_fleet() {
    let mut view = View::new(Layout::Native, LEASE_TIME, 500);
    let other =
        WorkerSeen { lease_time_ms: Some(4 * LEASE_TIME), ..worker("b", 1, Standing::Active) };
    let look = |workers| Snapshot { workers, leases: vec![lease("1", Some("a"), 7)] };
    view.observe(look(vec![other]), 5000);
    view.observe(look(vec![]), 5500);
    let at = |now_ms| view.holder(&view.leases()[0], now_ms);
    assert_eq!((at(8999), at(9000)), (Holder::Rowless, Holder::Gone));
}

/// Looks at one row of KCL's: owner, counter, reply.
fn check_kcl(looks: &[(Option<&str>, u64, u64)], now_ms: u64, holder: Holder, moved: Moved) {
    let mut view = View::new(Layout::Kcl, LEASE_TIME, 500);
    for (owner, counter, reply_ms) in looks {
        let leases = vec![lease("1", *owner, *counter)];
        view.observe(Snapshot { workers: vec![], leases }, *reply_ms);
    }
    let lease = &view.leases()[0];
    assert_eq!((view.holder(lease, now_ms), lease.heart.moved), (holder, moved), "{looks:?}");
}

#[test]
fn in_kcls_layout_each_lease_is_its_own_heart() {
    use Holder::{Beating, Nobody, Silent};
    use Moved::{At, Never};
    // Owned at first sight: renewed now. Unowned: infinitely old.
    check_kcl(&[(Some("a"), 1, 5000)], 6000, Beating, At(5000));
    check_kcl(&[(Some("a"), 1, 5000)], 6001, Silent, At(5000));
    check_kcl(&[(None, 1, 5000)], 5000, Nobody, Never);
    check_kcl(&[(None, 1, 5000), (None, 1, 5100)], 5100, Nobody, Never);
    // Any other counter is a renewal.
    check_kcl(&[(Some("a"), 5, 5000), (Some("a"), 6, 5900)], 6500, Beating, At(5900));
    check_kcl(&[(Some("a"), 5, 5000), (Some("a"), 2, 5900)], 6500, Beating, At(5900));
    check_kcl(&[(Some("a"), 5, 5000), (Some("b"), 5, 5900)], 6500, Silent, At(5000));
    // Taken, then given back: it was moved when that was seen.
    check_kcl(&[(None, 1, 5000), (Some("a"), 2, 5100)], 5200, Beating, At(5100));
    check_kcl(&[(Some("a"), 1, 5000), (None, 2, 5100)], 5200, Nobody, At(5100));
}

#[test]
fn in_kcls_layout_the_id_of_our_own_workers_says_their_lease_time() {
    for own_ms in [1, LEASE_TIME / 6, LEASE_TIME, 6 * LEASE_TIME] {
        let owner = WorkerId::of_kcl_join("a", 1, own_ms);
        let looks = [(Some(owner.as_str()), 1, 5000)];
        check_kcl(&looks, 5000 + own_ms, Holder::Beating, Moved::At(5000));
        check_kcl(&looks, 5001 + own_ms, Holder::Silent, Moved::At(5000));
        let mut view = View::new(Layout::Kcl, LEASE_TIME, 500);
        // A lease that moved at the last look is no candidate: its owner may renew it again and
        // again before it expires.
        let me = "me".into();
        for (counter, reply_ms, expiry_ms) in
            [(1, 5000, None), (1, 5001, Some(5001 + own_ms)), (2, 5002, None)]
        {
            let leases = vec![lease("1", Some(owner.as_str()), counter)];
            view.observe(Snapshot { workers: vec![], leases }, reply_ms);
            assert_eq!(view.next_expiry_ms(&me, reply_ms), expiry_ms);
        }
    }
}

#[test]
fn a_lease_that_has_not_moved_since_the_survey_is_as_old_as_that() {
    let counters = [("1".to_owned(), 5)].into_iter().collect();
    let survey = Survey { counters, ..Survey::default() };
    for (counter, moved, holder) in
        [(5, Moved::At(1000), Holder::Silent), (6, Moved::At(3000), Holder::Beating)]
    {
        let mut view = View::new(Layout::Kcl, LEASE_TIME, 500).after(Surveyed::new(&survey, 1000));
        let leases = vec![lease("1", Some("java"), counter), lease("2", Some("java"), 5)];
        view.observe(Snapshot { workers: vec![], leases }, 3000);
        let seen =
            |at: usize| (view.leases()[at].heart.moved, view.holder(&view.leases()[at], 3000));
        assert_eq!(seen(0), (moved, holder));
        assert_eq!(seen(1), (Moved::At(3000), Holder::Beating), "the survey did not show it");
        // It counts for the first look alone: the row may have been deleted and made again.
        view.observe(Snapshot::default(), 3500);
        view.observe(Snapshot { workers: vec![], leases: vec![lease("1", Some("java"), 5)] }, 4000);
        assert_eq!(view.leases()[0].heart.moved, Moved::At(4000));
    }
}

#[test]
fn a_row_that_vanished_is_new_when_it_comes_back() {
    let mut view = View::new(Layout::Kcl, LEASE_TIME, 500);
    let look = |key: &str| Snapshot { workers: vec![], leases: vec![lease(key, Some("a"), 1)] };
    view.observe(look("1"), 1000);
    view.observe(look("2"), 1500);
    view.observe(look("1"), 2500);
    assert_eq!(view.leases().len(), 1);
    assert_eq!(view.leases()[0].heart.moved, Moved::At(2500));
}

#[test]
fn a_look_may_list_rows_in_any_order() {
    let mut view = View::new(Layout::Native, LEASE_TIME, 500);
    let mut rows = vec![worker("b", 1, Standing::Active), worker("a", 1, Standing::Active)];
    let mut leases = vec![lease("2", Some("b"), 1), lease("1", None, 1), lease("3", None, 1)];
    view.observe(Snapshot { workers: rows.clone(), leases: leases.clone() }, 1000);
    rows.reverse();
    leases.reverse();
    view.observe(Snapshot { workers: rows, leases }, 1900);
    let keys: Vec<_> = view.leases().iter().map(|lease| lease.row.key.shard.as_str()).collect();
    assert_eq!(keys, ["1", "2", "3"]);
    assert!(view.workers().iter().all(|worker| worker.heart.moved == Moved::At(1000)));
    assert_eq!(view.leases()[0].free_since_ms, Some(1000));
    assert_eq!(view.leases()[1].free_since_ms, None);
}

/// Names on a lease of `a` and its term, look by look, 300 ms apart; patience is 500 ms.
fn check_names(looks: &[(Option<&str>, u64)], since: Option<u64>, in_vain: Option<u64>) {
    let mut view = View::new(Layout::Native, LEASE_TIME, 500);
    for (i, (named, term)) in looks.iter().enumerate() {
        let row = LeaseSeen { named: named.map(Into::into), ..lease("1", Some("a"), *term) };
        let workers = vec![worker("a", i as u64, Standing::Active)];
        view.observe(Snapshot { workers, leases: vec![row] }, 300 * i as u64);
    }
    let lease = &view.leases()[0];
    assert_eq!((lease.named_since_ms, lease.asked_in_vain_ms), (since, in_vain), "{looks:?}");
}

#[test]
fn a_name_that_waited_too_long_is_remembered_until_the_lease_moves() {
    check_names(&[(None, 1)], None, None);
    check_names(&[(Some("b"), 1), (Some("b"), 1)], Some(0), None);
    check_names(&[(Some("b"), 1), (Some("c"), 1)], Some(300), None);
    // Withdrawn soon, because it was not needed any more.
    check_names(&[(Some("b"), 1), (None, 1)], None, None);
    // Withdrawn after 600 ms.
    check_names(&[(Some("b"), 1), (Some("b"), 1), (None, 1)], None, Some(600));
    check_names(&[(Some("b"), 1), (Some("b"), 1), (None, 1), (None, 1)], None, Some(600));
    // Passed after 600 ms.
    check_names(&[(Some("b"), 1), (Some("b"), 1), (None, 2)], None, None);
    check_names(&[(Some("b"), 1), (Some("b"), 1), (None, 1), (None, 2)], None, None);
}
