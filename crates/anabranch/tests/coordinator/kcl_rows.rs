//! Incomplete tables of KCL: old versions wrote no hash range, and rows get lost.

use crate::fleet::{LEASE_TIME_MS, LeaseFleet, STREAM, TestWorker, id};
use crate::troubled::FaultyStore;
use anabranch::event::LeaseEvent;
use anabranch::lease::{LeaseStore, StreamSettings};
use anabranch::stream::LocalKinesis;
use anabranch::stream::api::{ShardFilter, StreamApi};
use anabranch_local::fault::{FaultEffect, FaultRule};
use anabranch_local::op::Operation;
use anabranch_model::hash::HashRange;
use anabranch_model::ids::ShardId;
use anabranch_model::lease::{
    Checkpoint, KclProbe, Layout, LeaseChange, LeaseKey, LeaseToken, NewLease, Nonce, Write,
};
use anabranch_model::position::{Position, StartPosition};
use anabranch_model::sequence::SequenceNumber;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::task::JoinSet;

const HOUR_MS: u64 = 3_600_000;
const QUARTER: u128 = 1 << 126;

/// Prepares the table of a stopped fleet: four rows, those of `rangeless` without their range. Then
/// the stream is resharded, and its closed shards are trimmed.
async fn left_behind(
    rangeless: &[u32],
    reshard: impl Fn(&LeaseFleet),
) -> (LeaseFleet, FaultyStore) {
    let fleet = LeaseFleet::new(Layout::Kcl, 4);
    let store = FaultyStore::new(fleet.store.clone());
    let a = fleet.worker_on(store.clone(), LeaseFleet::settings("a")).await.unwrap();
    fleet.until("a holds all", 60_000, || a.holds() == 4).await;
    let _ = a.stop(5_000).await;
    store.forget_ranges(rangeless.iter().copied().map(id));
    reshard(&fleet);
    fleet.engine.clock().advance(49 * HOUR_MS);
    (fleet, store)
}

fn ended(fleet: &LeaseFleet) -> Vec<String> {
    let rows = fleet.rows();
    rows.iter().filter(|row| row.is_ended()).map(|row| row.key.shard.to_string()).collect()
}

/// Starts a worker after [`left_behind`], and asserts that exactly the shards `lost` end and `read`
/// are read.
async fn check(rangeless: &[u32], reshard: impl Fn(&LeaseFleet), lost: &[u32], read: &[u32]) {
    let (fleet, store) = left_behind(rangeless, reshard).await;
    let b = fleet.worker_on(store, LeaseFleet::settings("b")).await.unwrap();
    let expected: BTreeSet<String> = read.iter().copied().map(id).collect();
    let reads = || -> BTreeSet<String> {
        b.coordinator.leases().iter().map(|key| key.shard.to_string()).collect()
    };
    let what = format!("{rangeless:?}: {lost:?} end and {read:?} are read");
    fleet.until(&what, 6 * LEASE_TIME_MS, || reads() == expected).await;
    let begun = fleet.watch.begun();
    assert!(expected.iter().all(|shard| begun.contains(shard)), "{begun:?}");
    // The row of a lost shard may be removed by now, and no other one has ended.
    assert!(ended(&fleet).iter().all(|shard| lost.iter().any(|it| id(*it) == *shard)));
    let told = |shard: &u32| {
        fleet.count(|event| match event {
            LeaseEvent::ShardMissing { lease, .. } => lease.shard.as_str() == id(*shard),
            _ => false,
        })
    };
    assert!(lost.iter().all(|shard| told(shard) == 1), "each loss is told once");
    let children = fleet.rows().into_iter().filter(|row| !row.parents.is_empty());
    for child in children {
        assert_eq!(child.checkpoint, Position::TrimHorizon, "{}", child.key);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_shard_without_a_range_ends_and_its_children_are_read() {
    let split = |fleet: &LeaseFleet| fleet.split(3, 3 * QUARTER + QUARTER / 2);
    check(&[3], split, &[3], &[0, 1, 2, 4, 5]).await;
    check(&[2, 3], split, &[3], &[0, 1, 2, 4, 5]).await;
    check(&[0, 1, 2, 3], split, &[3], &[0, 1, 2, 4, 5]).await;
    // The lowest shard of the stream: all others are younger.
    let split = |fleet: &LeaseFleet| fleet.split(0, QUARTER / 2);
    check(&[0], split, &[0], &[1, 2, 3, 4, 5]).await;
}

#[tokio::test(start_paused = true)]
async fn all_shards_without_a_range_may_be_lost_at_once() {
    let reshard = |fleet: &LeaseFleet| {
        for shard in 0..4 {
            fleet.split(shard, u128::from(shard) * QUARTER + QUARTER / 2);
        }
    };
    check(&[0, 1, 2, 3], reshard, &[0, 1, 2, 3], &[4, 5, 6, 7, 8, 9, 10, 11]).await;
}

#[tokio::test(start_paused = true)]
async fn the_grandchildren_of_a_lost_shard_without_a_range_are_read() {
    // One child of the lost shard is trimmed too, and then both.
    let one = |fleet: &LeaseFleet| {
        fleet.split(1, QUARTER + QUARTER / 2);
        fleet.split(4, QUARTER + QUARTER / 4);
    };
    check(&[1], one, &[1], &[0, 2, 3, 5, 6, 7]).await;
    let both = move |fleet: &LeaseFleet| {
        one(fleet);
        fleet.split(5, 2 * QUARTER - QUARTER / 4);
    };
    check(&[1], both, &[1], &[0, 2, 3, 6, 7, 8, 9]).await;
    check(&[0, 1, 2, 3], both, &[1], &[0, 2, 3, 6, 7, 8, 9]).await;
}

#[tokio::test(start_paused = true)]
async fn merged_shards_without_ranges_are_lost_and_their_child_is_read() {
    let merge = |fleet: &LeaseFleet| fleet.merge(1, 2);
    check(&[1], merge, &[1, 2], &[0, 3, 4]).await;
    check(&[1, 2], merge, &[1, 2], &[0, 3, 4]).await;
    check(&[0, 1, 2, 3], merge, &[1, 2], &[0, 3, 4]).await;
    let again = |fleet: &LeaseFleet| {
        fleet.merge(1, 2);
        fleet.merge(4, 3);
    };
    check(&[2], again, &[1, 2, 3], &[0, 5]).await;
    check(&[0, 1, 2, 3], again, &[1, 2, 3], &[0, 5]).await;
}

/// Lets a Java worker take a lease.
async fn taken_by(fleet: &LeaseFleet, java: &str, shard: u32) -> LeaseToken {
    let key = LeaseKey::new(STREAM, id(shard));
    let term = fleet.store.get(&key).await.unwrap().unwrap().term;
    let take = LeaseChange::Take { taker: java.into(), term };
    let taken = fleet.store.write(&Write::lease(&key, take, Nonce(1))).await.unwrap();
    taken.token().unwrap()
}

/// Starts a Java worker that holds a lease and renews it.
async fn java(fleet: &LeaseFleet, name: &str, shard: u32, hearts: &mut JoinSet<()>) {
    let mut hold = taken_by(fleet, name, shard).await;
    let (store, clock) = (fleet.store.clone(), fleet.clock.clone());
    hearts.spawn(async move {
        loop {
            clock.sleep(LEASE_TIME_MS / 3).await;
            let renewed = store.write(&hold.renew(Nonce(1))).await.unwrap();
            hold = renewed.token().unwrap();
        }
    });
}

/// Deletes the row of a shard, in the native layout as if it had been finished.
async fn delete(fleet: &LeaseFleet, shard: u32) {
    let key = LeaseKey::new(STREAM, id(shard));
    let row = fleet.store.get(&key).await.unwrap().unwrap();
    let mut term = row.term;
    if fleet.store.layout() == Layout::Native {
        let hold = taken_by(fleet, "hand", shard).await;
        let end = fleet.store.write(&hold.end(row.checkpoint.clone(), Nonce(1))).await.unwrap();
        term = end.lease().unwrap().term;
    }
    let delete = Write::lease(&key, LeaseChange::Delete { term }, Nonce(1));
    assert!(fleet.store.write(&delete).await.unwrap().is_done());
    // Its reader delivers until the next renewal.
    fleet.pass(LEASE_TIME_MS / 2).await;
    fleet.watch.forget(&key);
}

fn delivered(fleet: &LeaseFleet, shards: &[u32]) -> bool {
    shards.iter().all(|shard| fleet.watch.last(&id(*shard)).is_some())
}

fn row(fleet: &LeaseFleet, shard: u32) -> Option<Position> {
    let find = |row: &anabranch_model::lease::Lease| row.key.shard.as_str() == id(shard);
    fleet.rows().into_iter().find(find).map(|row| row.checkpoint.lowest())
}

#[tokio::test(start_paused = true)]
async fn holes_are_repaired_beside_a_lost_shard_without_a_range() {
    let split = |fleet: &LeaseFleet| fleet.split(3, 3 * QUARTER + QUARTER / 2);
    let (fleet, store) = left_behind(&[3], split).await;
    let mut hearts = JoinSet::new();
    java(&fleet, "java-1", 3, &mut hearts).await;
    let mut settings = LeaseFleet::settings("b");
    settings.streams[0].start = StartPosition::Latest;
    let b: TestWorker = fleet.worker_on(store, settings).await.unwrap();
    fleet.until("b reads the rest", 60_000, || b.holds() == 3).await;
    delete(&fleet, 0).await;
    fleet.until("the hole is repaired", 300_000, || row(&fleet, 0).is_some()).await;
    // The children get rows when their parent ends, and the start position skips none of their
    // records.
    assert_eq!((row(&fleet, 4), row(&fleet, 5)), (None, None));
    hearts.shutdown().await;
    fleet.until("the children are read", 300_000, || b.holds() == 5).await;
    let begin = Some(Position::TrimHorizon);
    assert_eq!((row(&fleet, 4), row(&fleet, 5)), (begin, begin));
}

#[tokio::test(start_paused = true)]
async fn a_merged_shard_does_not_wait_for_a_parent_whose_row_was_removed() {
    let fleet = LeaseFleet::new(Layout::Kcl, 2);
    let a = fleet.worker("a").await;
    fleet.until("a reads both", 60_000, || a.holds() == 2).await;
    *a.manners.held_up.lock().unwrap() = Some(id(1));
    fleet.merge(0, 1);
    fleet.until("shard 0 has ended", 60_000, || ended(&fleet) == [id(0)]).await;
    fleet.pass(1_000).await;
    fleet.engine.clock().advance(49 * HOUR_MS);
    fleet.until("its row is removed", 300_000, || row(&fleet, 0).is_none()).await;
    *a.manners.held_up.lock().unwrap() = None;
    let started = || fleet.watch.begun().contains(&id(2));
    fleet.until("the merged shard is read", 2 * LEASE_TIME_MS, started).await;
    assert_eq!(fleet.count(|event| matches!(event, LeaseEvent::ShardMissing { .. })), 0);
}

/// The merged shard of a lost parent was split and trimmed before the other parent was read to its
/// end.
#[tokio::test(start_paused = true)]
async fn a_merged_shard_that_is_gone_is_not_waited_for() {
    let fleet = LeaseFleet::new(Layout::Kcl, 2);
    let a = fleet.worker("a").await;
    fleet.until("a reads both", 60_000, || a.holds() == 2).await;
    *a.manners.held_up.lock().unwrap() = Some(id(1));
    fleet.merge(0, 1);
    fleet.until("shard 0 has ended", 60_000, || ended(&fleet) == [id(0)]).await;
    fleet.split(2, QUARTER);
    fleet.pass(1_000).await;
    // The lost parent ended without a row for the merged shard.
    delete(&fleet, 0).await;
    delete(&fleet, 2).await;
    fleet.engine.clock().advance(49 * HOUR_MS);
    *a.manners.held_up.lock().unwrap() = None;
    let both = || [3, 4].iter().all(|shard| fleet.watch.begun().contains(&id(*shard)));
    fleet.until("the heirs are read", 2 * LEASE_TIME_MS, both).await;
    assert_eq!((row(&fleet, 2), row(&fleet, 1)), (None, Some(Position::ShardEnd)));
    let lost = |event: &LeaseEvent| match event {
        LeaseEvent::ShardMissing { lease, successors } => {
            lease.shard.as_str() == id(2) && successors.len() == 2
        }
        _ => false,
    };
    assert_eq!(fleet.count(lost), 1, "what was not read of the merged shard is lost");
}

#[tokio::test(start_paused = true)]
async fn shards_that_wait_for_a_parents_row_list_the_stream_together() {
    // Shard 5 came from 0, which is not read to its end, so it has no row. It is merged with 1.
    let fleet = LeaseFleet::new(Layout::Kcl, 4);
    let a = fleet.worker("a").await;
    fleet.until("a reads all", 60_000, || a.holds() == 4).await;
    *a.manners.held_up.lock().unwrap() = Some(id(0));
    fleet.split(0, QUARTER / 2);
    fleet.merge(5, 1);
    fleet.split(2, 2 * QUARTER + QUARTER / 2);
    fleet.until("2 has ended", 10_000, || ended(&fleet).contains(&id(2))).await;
    let rule = fleet.engine.faults().add(FaultRule {
        operation: Some(Operation::ListShards),
        stream: None,
        shard: None,
        probability: 1.0,
        skip: 0,
        count: None,
        effect: FaultEffect::Delay { ms: 0 },
    });
    fleet.pass(300_000).await;
    assert_eq!(ended(&fleet), [id(2)]);
    let rules = fleet.engine.faults().list();
    let lists = rules.iter().find(|it| it.id == rule).unwrap().struck;
    // One every 30 s, and those of the audits.
    assert!((10..=18).contains(&lists), "{lists} lists in 300 s");
    *a.manners.held_up.lock().unwrap() = None;
    let begun = || fleet.watch.begun().contains(&id(6));
    fleet.until("the merged shard is read", 60_000, begun).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_child_row_is_made_again_by_a_running_worker() {
    for layout in [Layout::Kcl, Layout::Native] {
        let fleet = LeaseFleet::new(layout, 2);
        let a = fleet.worker("a").await;
        fleet.until("a reads both", 60_000, || a.holds() == 2).await;
        fleet.split(0, QUARTER);
        fleet.until("a reads the children", 60_000, || delivered(&fleet, &[2, 3])).await;
        let _running = if layout == Layout::Native {
            let _ = a.stop(5_000).await;
            delete(&fleet, 2).await;
            fleet.worker("b").await
        } else {
            delete(&fleet, 2).await;
            a
        };
        fleet.until("the row is there again", 90_000, || row(&fleet, 2).is_some()).await;
        assert_eq!(row(&fleet, 2), Some(Position::TrimHorizon), "{layout:?}");
        fleet.until("it is read", 60_000, || delivered(&fleet, &[2])).await;
        let made = |event: &LeaseEvent| matches!(event, LeaseEvent::RowsCreated { rows: 1, .. });
        assert_eq!(fleet.count(made), 1, "{layout:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_child_row_is_made_again_where_java_leads_the_table() {
    let fleet = LeaseFleet::new(Layout::Kcl, 2);
    let b = fleet.worker("b").await;
    fleet.until("b reads both", 60_000, || b.holds() == 2).await;
    let mut hearts = JoinSet::new();
    java(&fleet, "!java", 1, &mut hearts).await;
    fleet.split(0, QUARTER);
    fleet.until("b reads a child", 60_000, || fleet.watch.begun().contains(&id(3))).await;
    delete(&fleet, 2).await;
    fleet.until("the row is there again", 90_000, || row(&fleet, 2).is_some()).await;
    assert_eq!(row(&fleet, 2), Some(Position::TrimHorizon));
    let holes = fleet.count(|event| matches!(event, LeaseEvent::HashRangeHole { .. }));
    assert_eq!(holes, 0, "holes are for Java's leader to repair");
}

#[tokio::test(start_paused = true)]
async fn the_removed_row_of_a_finished_child_does_not_come_back() {
    let fleet = LeaseFleet::new(Layout::Kcl, 1);
    let a = fleet.worker("a").await;
    fleet.until("a reads", 60_000, || a.holds() == 1).await;
    fleet.split(0, 2 * QUARTER);
    fleet.until("a reads the children", 60_000, || delivered(&fleet, &[1, 2])).await;
    fleet.split(1, QUARTER);
    fleet.until("and theirs", 60_000, || delivered(&fleet, &[3, 4])).await;
    // KCL before 1.14 and 2.3 removed it although the parent's row is there.
    delete(&fleet, 1).await;
    fleet.pass(600_000).await;
    assert_eq!((row(&fleet, 1), row(&fleet, 0)), (None, Some(Position::ShardEnd)));
}

#[tokio::test(start_paused = true)]
async fn a_table_of_kcl_3_that_stood_still_is_taken_over_without_another_wait() {
    let fleet = LeaseFleet::new(Layout::Kcl, 4);
    let a = fleet.worker("a").await;
    fleet.until("a reads all", 60_000, || a.holds() == 4).await;
    let _ = a.stop(5_000).await;
    for shard in 0..4 {
        let _ = taken_by(&fleet, "java-3", shard).await;
    }
    let store = FaultyStore::new(fleet.store.clone());
    let counters = fleet.rows().into_iter().map(|row| (row.key.shard.to_string(), row.term));
    *store.survey.lock().unwrap() = KclProbe {
        client_version: Some("CLIENT_VERSION_3X".into()),
        counters: counters.collect(),
        ..KclProbe::default()
    };
    let b = fleet.worker_on(store, LeaseFleet::settings("b")).await.unwrap();
    let kept_off = fleet.count(|event| matches!(event, LeaseEvent::WaitingForKcl3 { .. }));
    assert_eq!(kept_off, 1, "it has waited for a lease time");
    fleet.until("b reads all", 3_000, || b.holds() == 4).await;
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_of_an_older_stream_of_the_same_name_stops_the_worker() {
    let fleet = LeaseFleet::new(Layout::Kcl, 2);
    let a = fleet.worker("a").await;
    fleet.until("a reads both", 60_000, || a.holds() == 2).await;
    let _ = a.stop(5_000).await;
    let hold = taken_by(&fleet, "java-1", 0).await;
    let api = LocalKinesis::new(fleet.engine.clone());
    let list = api.list_shards(&STREAM.into(), ShardFilter::All).await.unwrap();
    let old = Position::At { sequence: list.shards[0].starting, sub: 0 };
    let before = fleet.rows()[0].checkpoint.clone();
    let write = hold.checkpoint(before, Checkpoint::at(old), None, Nonce(1));
    assert!(fleet.store.write(&write).await.unwrap().is_done());
    fleet.delete();
    fleet.engine.clock().advance(60_000);
    fleet.create(2);
    let b = fleet.worker("b").await;
    let refusal = tokio::time::timeout(Duration::from_secs(2), b.coordinator.wait_refused()).await;
    let words = refusal.expect("at once").to_string();
    assert!(words.contains("was recreated at"), "{words}");
    assert!(words.contains(&id(0)) && words.contains("new application name"), "{words}");
    fleet.until("nothing is held", 10_000, || b.holds() == 0).await;
    let told = |event: &LeaseEvent| matches!(event, LeaseEvent::StreamRecreated { .. });
    assert_eq!(fleet.count(told), 1);
    assert_eq!(row(&fleet, 0), Some(old), "the rows are left as they are");
}

/// Starts a worker on these rows, which must read the remaining shard.
async fn starts_and_reads(fleet: &LeaseFleet, start: StartPosition, shard: u32) {
    let mut settings = LeaseFleet::settings("b");
    settings.streams = vec![StreamSettings { name: STREAM.into(), start }];
    let worker = fleet.worker_on(FaultyStore::new(fleet.store.clone()), settings);
    let started = tokio::time::timeout(Duration::from_mins(5), worker).await;
    let _b = started.expect("it starts within five minutes").expect("it starts");
    let read = || fleet.watch.begun().contains(&id(shard));
    fleet.until("the shard that is left is read", 6 * LEASE_TIME_MS, read).await;
}

#[tokio::test(start_paused = true)]
async fn a_first_sync_at_latest_that_was_broken_off_before_a_merge_ends_after_retention() {
    let fleet = LeaseFleet::new(Layout::Kcl, 2);
    let first = NewLease {
        shard: ShardId::from_index(0),
        parents: vec![],
        range: HashRange::divide_all(2)[0],
        checkpoint: Position::Latest,
    };
    let create = first.create(&STREAM.into(), Nonce(1));
    assert!(fleet.store.write(&create).await.unwrap().is_done());
    fleet.merge(0, 1);
    fleet.engine.clock().advance(49 * HOUR_MS);
    starts_and_reads(&fleet, StartPosition::Latest, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_start_waits_for_no_row_of_a_merged_parent_that_was_lost_and_trimmed() {
    let (fleet, store) = left_behind(&[], |fleet| fleet.merge(1, 2)).await;
    let row = |shard: u32| LeaseKey::new(STREAM, id(shard).as_str());
    let delete = Write::lease(&row(1), LeaseChange::Delete { term: 0 }, Nonce(9));
    assert!(store.write(&delete).await.unwrap().is_done());
    // The other rows were in use.
    let zero = store.get(&row(0)).await.unwrap().unwrap();
    let take = LeaseChange::Take { taker: "java".into(), term: zero.term };
    assert!(store.write(&Write::lease(&row(0), take, Nonce(10))).await.unwrap().is_done());
    let java = LeaseToken { key: row(0), owner: "java".into(), term: zero.term + 1 };
    let sequence = SequenceNumber::from_limbs(0, 0, 7).unwrap();
    let to = Checkpoint::at(Position::At { sequence, sub: 0 });
    let write = java.checkpoint(zero.checkpoint, to, None, Nonce(11));
    assert!(store.write(&write).await.unwrap().is_done());
    starts_and_reads(&fleet, StartPosition::TrimHorizon, 4).await;
}
