//! Conditions under which the children of a split or a merge may start.

use crate::fleet::{LEASE_TIME_MS, LeaseFleet, STREAM, TestWorker, id};
use crate::troubled::{FaultyStore, LinkFaults};
use anabranch::event::LeaseEvent;
use anabranch::lease::{CoordinatorSettings, StopResult};
use anabranch_local::fault::{FaultEffect, FaultRule};
use anabranch_local::op::Operation;
use anabranch_model::lease::{Layout, LeaseChange, LeaseKey, Write};
use std::sync::{Arc, Mutex};

const HALF: u128 = 1 << 127;

fn started(fleet: &LeaseFleet, shard: u32) -> bool {
    fleet.watch.begun().contains(&id(shard))
}

async fn splits_and_merges(layout: Layout) {
    let fleet = LeaseFleet::new(layout, 1);
    let a = fleet.worker("a").await;
    let b = fleet.worker("b").await;
    fleet.until("shard 0 is read", 60_000, || started(&fleet, 0)).await;
    fleet.split(0, HALF);
    fleet.until("its children are read", 60_000, || started(&fleet, 1) && started(&fleet, 2)).await;
    fleet.merge(1, 2);
    fleet.until("the merged shard is read", 60_000, || started(&fleet, 3)).await;
    let ended = fleet.rows().iter().filter(|row| row.is_ended()).count();
    assert_eq!(ended, 3, "{:?}", fleet.rows());
    let children: Vec<_> = fleet.rows().iter().map(|row| row.children.len()).collect();
    assert_eq!(children, [2, 1, 1, 0]);
    let begun = fleet.watch.begun();
    let at = |shard| begun.iter().position(|it| *it == id(shard)).unwrap();
    assert!(at(0) < at(1) && at(0) < at(2) && at(1) < at(3) && at(2) < at(3), "{begun:?}");
    drop((a, b));
}

#[tokio::test(start_paused = true)]
async fn children_start_after_their_parents() {
    splits_and_merges(Layout::Native).await;
}

#[tokio::test(start_paused = true)]
async fn children_start_after_their_parents_in_kcls_layout() {
    splits_and_merges(Layout::Kcl).await;
}

/// Decision 2: first the child rows, then the children's names on the parent, then the end.
#[tokio::test(start_paused = true)]
async fn the_rows_of_the_children_come_before_their_names_and_these_before_the_end() {
    for layout in [Layout::Native, Layout::Kcl] {
        let fleet = LeaseFleet::new(layout, 1);
        let store = FaultyStore::new(fleet.store.clone());
        let a = fleet.worker_on(store.clone(), LeaseFleet::settings("a")).await.unwrap();
        fleet.until("shard 0 is read", 60_000, || started(&fleet, 0)).await;
        let writes: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = Arc::clone(&writes);
        store.fail_if(move |write| {
            let Write::Lease { key, change, .. } = write else { return false };
            let what = match change {
                LeaseChange::Create(_) => "create",
                LeaseChange::NoteChildren(_) => "name",
                LeaseChange::End { .. } => "end",
                _ => return false,
            };
            let digit = key.shard.as_str().chars().last().unwrap();
            noted.lock().unwrap().push(format!("{what} {digit}"));
            false
        });
        fleet.split(0, HALF);
        fleet
            .until("its children are read", 60_000, || started(&fleet, 1) && started(&fleet, 2))
            .await;
        let writes = writes.lock().unwrap().clone();
        assert_eq!(writes, ["create 1", "create 2", "name 0", "end 0"], "{layout:?}");
        drop(a);
    }
}

#[tokio::test(start_paused = true)]
async fn a_merged_child_waits_for_the_slower_parent() {
    let fleet = LeaseFleet::native(2);
    let a = fleet.worker("a").await;
    let b = fleet.worker("b").await;
    fleet.until("both are read", 5_000, || (a.holds(), b.holds()) == (1, 1)).await;
    // One parent's worker is cut off: that parent does not end, the other one does.
    let slow = a.coordinator.leases()[0].shard.to_string();
    a.store.set(LinkFaults::Throttled);
    fleet.merge(0, 1);
    fleet.pass(6_000).await;
    let ended: Vec<_> = fleet
        .rows()
        .iter()
        .filter(|row| row.is_ended())
        .map(|row| row.key.shard.to_string())
        .collect();
    assert!(ended.len() == 1 && ended[0] != slow, "{ended:?}");
    assert!(!started(&fleet, 2));
    a.store.set(LinkFaults::Good);
    fleet.until("the child is read", 5_000, || started(&fleet, 2)).await;
}

#[tokio::test(start_paused = true)]
async fn a_child_whose_parents_lie_before_the_start_is_read_at_once() {
    let fleet = LeaseFleet::native(1);
    fleet.split(0, HALF);
    // The parent lies before the start, and the service still lists it.
    let mut settings = LeaseFleet::settings("a");
    settings.streams[0].start = anabranch_model::position::StartPosition::Latest;
    fleet.engine.clock().advance(5_000);
    let a = fleet.try_worker(settings).await.unwrap();
    fleet.until("both children are read", 5_000, || a.holds() == 2).await;
    let shards: Vec<_> = fleet.rows().iter().map(|row| row.key.shard.to_string()).collect();
    assert_eq!(shards, [id(1), id(2)]);
    let t0 = fleet.table().application().streams.values().next().unwrap().t0_ms;
    for row in fleet.rows() {
        assert_eq!(row.checkpoint, anabranch_model::position::Position::AtTimestamp(t0));
    }
}

/// Prepares shards 2 and 3 with the parent shard 0, which precedes the start and has no row. The
/// start lists the shards twice; from then on every list meets this fault.
fn gates_behind(effect: FaultEffect) -> (LeaseFleet, u64) {
    let fleet = LeaseFleet::native(2);
    fleet.split(0, HALF / 2);
    fleet.engine.clock().advance(5_000);
    let rule = fleet.engine.faults().add(FaultRule {
        operation: Some(Operation::ListShards),
        stream: None,
        shard: None,
        probability: 1.0,
        skip: 2,
        count: None,
        effect,
    });
    (fleet, rule)
}

fn from_now(name: &str) -> CoordinatorSettings {
    let mut settings = LeaseFleet::settings(name);
    settings.streams[0].start = anabranch_model::position::StartPosition::Latest;
    settings
}

#[tokio::test(start_paused = true)]
async fn a_first_sync_that_is_repeated_later_lists_the_shards_of_the_first_moment() {
    let fleet = LeaseFleet::native(1);
    let store = FaultyStore::new(fleet.store.clone());
    store.fail_if(|write| matches!(write, Write::Lease { change: LeaseChange::Create(_), .. }));
    assert!(fleet.worker_on(store, from_now("a")).await.is_err(), "it dies before its first row");
    fleet.engine.clock().advance(5_000);
    fleet.split(0, HALF);
    fleet.engine.clock().advance(5_000);
    let _b = fleet.try_worker(from_now("b")).await.unwrap();
    fleet.until("what came into shard 0 is read", LEASE_TIME_MS, || started(&fleet, 0)).await;
    fleet.until("and then its children", LEASE_TIME_MS, || started(&fleet, 2)).await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_hangs_delays_no_take_of_a_lease_whose_gate_the_rows_open() {
    let (fleet, hang) = gates_behind(FaultEffect::Delay { ms: 3_600_000 });
    let a = fleet.try_worker(from_now("a")).await.unwrap();
    let holds_1 =
        |worker: &TestWorker| worker.coordinator.leases() == [LeaseKey::new(STREAM, id(1))];
    fleet.until("the other lease is taken", 1_000, || holds_1(&a)).await;
    assert!(matches!(a.stop(1_000).await, StopResult::Left));
    // The children are being checked while the lease changes hands.
    let b = fleet.try_worker(from_now("b")).await.unwrap();
    fleet.until("and by the next worker", 1_000, || holds_1(&b)).await;
    assert!(!started(&fleet, 2) && !started(&fleet, 3));
    assert!(fleet.engine.faults().remove(hang));
    fleet.until("the children are read", 30_000, || b.holds() == 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_could_not_be_tried_opens_half_a_lease_time_after_the_service_is_back() {
    let (fleet, down) = gates_behind(FaultEffect::InternalError);
    let a = fleet.try_worker(from_now("a")).await.unwrap();
    // Long enough for pauses to reach their maximum.
    fleet.pass(12 * LEASE_TIME_MS).await;
    assert_eq!(a.holds(), 1);
    assert!(fleet.engine.faults().remove(down));
    fleet.until("the children are read", LEASE_TIME_MS * 6 / 10, || a.holds() == 3).await;
}

#[tokio::test(start_paused = true)]
async fn an_ancestor_whose_row_makes_no_sense_is_in_the_way_of_its_own_descendants_alone() {
    let fleet = LeaseFleet::native(2);
    // 0 was split into 2 and 3, 1 into 4 and 5, and both lie before the start.
    fleet.split(0, HALF / 2);
    fleet.split(1, HALF + HALF / 2);
    fleet.engine.clock().advance(5_000);
    let store = FaultyStore::new(fleet.store.clone());
    store.make_unreadable([id(0)]);
    let a = fleet.worker_on(store.clone(), from_now("a")).await.unwrap();
    fleet
        .until("the others are read", LEASE_TIME_MS, || started(&fleet, 4) && started(&fleet, 5))
        .await;
    fleet.pass(3 * LEASE_TIME_MS).await;
    assert!(!started(&fleet, 2) && !started(&fleet, 3), "{:?}", fleet.watch.begun());
    assert!(fleet.count(|event| matches!(event, LeaseEvent::RowUnreadable { .. })) > 0);
    store.make_unreadable([]);
    fleet.until("all are read", LEASE_TIME_MS, || a.holds() == 4).await;
}
