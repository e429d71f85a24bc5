//! Unreadable rows: each is reported once, and blocks nothing but its shard.

use crate::fleet::{LEASE_TIME_MS, LeaseFleet, STREAM, id};
use crate::troubled::FaultyStore;
use anabranch::event::LeaseEvent;
use anabranch::lease::LeaseStore;
use anabranch_model::hash::HashRange;
use anabranch_model::ids::ShardId;
use anabranch_model::lease::{Layout, LeaseChange, LeaseKey, NewLease, Nonce, Write};
use anabranch_model::position::Position;
use std::collections::BTreeSet;

const HALF: u128 = 1 << 127;
const MINUTE_MS: u64 = 60_000;

fn reports(fleet: &LeaseFleet) -> usize {
    fleet.count(|event| matches!(event, LeaseEvent::RowUnreadable { .. }))
}

fn begun(fleet: &LeaseFleet) -> BTreeSet<String> {
    fleet.watch.begun().into_iter().collect()
}

#[tokio::test(start_paused = true)]
async fn a_first_start_makes_the_other_rows_beside_one_that_makes_no_sense() {
    for layout in [Layout::Native, Layout::Kcl] {
        let fleet = LeaseFleet::new(layout, 3);
        let first = FaultyStore::new(fleet.store.clone());
        // The first worker crashes as it creates row 2.
        first.fail_if(|write| {
            let of_2 = |key: &LeaseKey| key.shard.as_str() == id(2);
            matches!(write, Write::Lease { key, change: LeaseChange::Create(_), .. } if of_2(key))
        });
        assert!(fleet.worker_on(first, LeaseFleet::settings("a")).await.is_err());
        let store = FaultyStore::new(fleet.store.clone());
        store.make_unreadable([id(0)]);
        let started = fleet.worker_on(store.clone(), LeaseFleet::settings("b"));
        let started = tokio::time::timeout(std::time::Duration::from_mins(1), started).await;
        let b = started.expect("it starts within a minute").expect("it starts");
        fleet.until("the rest is read", MINUTE_MS, || b.holds() == 2).await;
        fleet.pass(10 * MINUTE_MS).await;
        assert_eq!(begun(&fleet), [id(1), id(2)].into(), "{layout:?}");
        assert_eq!(reports(&fleet), 1, "{layout:?}");
        store.make_unreadable([]);
        fleet.until("row 0 is read again", 2 * LEASE_TIME_MS, || b.holds() == 3).await;
        store.make_unreadable([id(0)]);
        fleet.until("and reported again", MINUTE_MS, || reports(&fleet) == 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_worker_starts_beside_a_row_that_makes_no_sense() {
    for layout in [Layout::Native, Layout::Kcl] {
        let fleet = LeaseFleet::new(layout, 3);
        let a = fleet.worker("a").await;
        fleet.until("all are read", MINUTE_MS, || a.holds() == 3).await;
        let store = FaultyStore::new(fleet.store.clone());
        store.make_unreadable([id(0)]);
        a.store.make_unreadable([id(0)]);
        let b = fleet.worker_on(store, LeaseFleet::settings("b"));
        let b = tokio::time::timeout(std::time::Duration::from_mins(1), b).await;
        let b = b.expect("it starts within a minute").expect("it starts");
        drop(a);
        fleet.until("it reads the rest", MINUTE_MS, || b.holds() == 2).await;
    }
}

/// An unreadable row of a worker says nothing about the worker, which may send heartbeats.
#[tokio::test(start_paused = true)]
async fn a_live_worker_whose_row_others_cant_read_keeps_its_leases() {
    let fleet = LeaseFleet::native(4);
    let a = fleet.worker("a").await;
    let b = fleet.worker("b").await;
    fleet.until("they share", MINUTE_MS, || (a.holds(), b.holds()) == (2, 2)).await;
    b.store.make_worker_unreadable(Some("a"));
    fleet.pass(6 * LEASE_TIME_MS).await;
    assert_eq!((a.holds(), b.holds()), (2, 2));
    assert_eq!(reports(&fleet), 1);
    // It is fenced once its row can be read again.
    drop(a);
    b.store.make_worker_unreadable(None);
    fleet.until("b has all", 2 * LEASE_TIME_MS, || b.holds() == 4).await;
}

/// The row of a child is unreadable: it exists, so the parent can end.
#[tokio::test(start_paused = true)]
async fn a_parent_ends_beside_a_child_row_that_makes_no_sense() {
    for layout in [Layout::Native, Layout::Kcl] {
        let fleet = LeaseFleet::new(layout, 1);
        let a = fleet.worker("a").await;
        fleet.until("shard 0 is read", MINUTE_MS, || a.holds() == 1).await;
        let (shard, parents) = (ShardId::from_index(1), vec![ShardId::from_index(0)]);
        let (range, checkpoint) = (HashRange::divide_all(2)[0], Position::TrimHorizon);
        let child = NewLease { shard, parents, range, checkpoint };
        let create = child.create(&STREAM.into(), Nonce(1));
        assert!(fleet.store.write(&create).await.unwrap().is_done());
        a.store.make_unreadable([id(1)]);
        fleet.split(0, HALF);
        fleet.until("the other child", MINUTE_MS, || begun(&fleet).contains(&id(2))).await;
        assert!(!begun(&fleet).contains(&id(1)));
    }
}

/// Audits that find only problems that they cannot repair become less frequent.
#[tokio::test(start_paused = true)]
async fn audits_that_repair_nothing_become_rare() {
    let fleet = LeaseFleet::new(Layout::Kcl, 2);
    let a = fleet.worker("a").await;
    fleet.until("all are read", MINUTE_MS, || a.holds() == 2).await;
    fleet.split(0, HALF / 2);
    let children = || begun(&fleet).contains(&id(2)) && begun(&fleet).contains(&id(3));
    fleet.until("the children are read", MINUTE_MS, children).await;
    let key = LeaseKey::new(STREAM, id(2));
    let row = fleet.store.get(&key).await.unwrap().unwrap();
    let delete = Write::lease(&key, LeaseChange::Delete { term: row.term }, Nonce(1));
    assert!(fleet.store.write(&delete).await.unwrap().is_done());
    // The row cannot be created again.
    let of_2 = id(2);
    a.store.fail_if(move |write| {
        let lost = |key: &LeaseKey| key.shard.as_str() == of_2;
        matches!(write, Write::Lease { key, change: LeaseChange::Create(_), .. } if lost(key))
    });
    fleet.pass(10 * MINUTE_MS).await;
    let failed = || fleet.count(|event| matches!(event, LeaseEvent::StreamCallFailed { .. }));
    let before = failed();
    fleet.pass(60 * MINUTE_MS).await;
    // Two at each audit, for a lost child and for a hole in the hash range. Six times as many would
    // be the pace of an audit that has just found something.
    let repairs = failed() - before;
    assert!((100..160).contains(&repairs), "{repairs} in an hour");
    drop(a);
}
