//! Checkpoints: fenced, conditional, and retried while the store fails.

use crate::fleet::{Api, LEASE_TIME_MS, LeaseFleet};
use crate::troubled::{FaultyStore, LinkFaults};
use anabranch::clock::Rng;
use anabranch::event::Events;
use anabranch::lease::{
    CheckpointResult, Coordinator, CoordinatorSettings, FinishReason, LeaseHandle, StopReason,
};
use anabranch::stream::LocalKinesis;
use anabranch_model::lease::{Checkpoint, Layout};
use anabranch_model::position::{Position, StartPosition};
use anabranch_model::sequence::SequenceNumber;
use std::sync::Arc;
use tokio::sync::mpsc;

/// A worker whose leases the test itself runs.
struct BareWorker {
    coordinator: Coordinator<FaultyStore, Api>,
    grips: mpsc::Receiver<LeaseHandle<FaultyStore, Api>>,
    store: FaultyStore,
}

async fn bare(fleet: &LeaseFleet, name: &str) -> BareWorker {
    bare_with(fleet, LeaseFleet::settings(name)).await
}

async fn bare_with(fleet: &LeaseFleet, settings: CoordinatorSettings) -> BareWorker {
    let chance = Rng::seeded(settings.name.len() as u64);
    let store = FaultyStore::new(fleet.store.clone());
    let (coordinator, grips) = Coordinator::start(
        Arc::new(store.clone()),
        Arc::new(LocalKinesis::new(fleet.engine.clone())),
        settings,
        fleet.clock.clone(),
        chance,
        Events::none(),
    )
    .await
    .unwrap();
    BareWorker { coordinator, grips, store }
}

fn at(low: u64) -> Checkpoint {
    let sequence = SequenceNumber::from_limbs(0, 0, low).unwrap();
    Checkpoint::at(Position::At { sequence, sub: 0 })
}

#[tokio::test(start_paused = true)]
async fn checkpoints_are_carried_through_every_trouble_within_the_lease_time() {
    for layout in [Layout::Native, Layout::Kcl] {
        let fleet = LeaseFleet::new(layout, 1);
        let mut a = bare(&fleet, "a").await;
        let grip = a.grips.recv().await.unwrap();
        let mut done = 0;
        for line in [
            LinkFaults::Good,
            LinkFaults::Throttled,
            LinkFaults::RequestsLost,
            LinkFaults::RepliesLost,
            LinkFaults::Dead,
        ] {
            done += 1;
            a.store.set(line);
            let ((), made) = tokio::join!(
                async {
                    fleet.pass(4_000).await;
                    a.store.set(LinkFaults::Good);
                },
                grip.checkpoint(at(done), None),
            );
            assert!(matches!(made, CheckpointResult::Done), "{layout:?}, {line:?}: {made:?}");
            assert_eq!(fleet.rows()[0].checkpoint, at(done), "{layout:?}, {line:?}");
            fleet.pass(4_000).await;
        }
        let back = grip.checkpoint(at(1), None).await;
        assert!(matches!(back, CheckpointResult::BehindCurrent), "{back:?}");
        grip.finish(FinishReason::Drained);
        drop(a.coordinator);
    }
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_whose_caller_went_away_does_not_stop_the_next_one() {
    for layout in [Layout::Native, Layout::Kcl] {
        let fleet = LeaseFleet::new(layout, 1);
        let mut a = bare(&fleet, "a").await;
        let grip = a.grips.recv().await.unwrap();
        a.store.set(LinkFaults::RepliesLost);
        tokio::select! {
            biased;
            made = grip.checkpoint(at(1), None) => panic!("{made:?}"),
            () = fleet.pass(1) => {}
        }
        assert_eq!(fleet.rows()[0].checkpoint, at(1), "{layout:?}: it was applied all the same");
        a.store.set(LinkFaults::Good);
        let made = grip.checkpoint(at(2), None).await;
        assert!(matches!(made, CheckpointResult::Done), "{layout:?}: {made:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_lost_its_lease_learns_it_and_writes_nothing() {
    for layout in [Layout::Native, Layout::Kcl] {
        let fleet = LeaseFleet::new(layout, 1);
        let mut a = bare(&fleet, "a").await;
        let grip = a.grips.recv().await.unwrap();
        assert!(matches!(grip.checkpoint(at(1), None).await, CheckpointResult::Done));
        a.store.set(LinkFaults::Dead);
        let mut b = bare(&fleet, "bb").await;
        let next = b.grips.recv().await.unwrap();
        assert!(!grip.may_deliver(), "{layout:?}: it stopped before the other one began");
        assert_eq!(grip.wait_for_stop().await, StopReason::Lost);
        assert_eq!(next.lease().checkpoint, at(1));
        assert!(next.may_deliver());
        a.store.set(LinkFaults::Good);
        let made = grip.checkpoint(at(9), None).await;
        assert!(matches!(made, CheckpointResult::Lost), "{layout:?}: {made:?}");
        assert_eq!(fleet.rows()[0].checkpoint, at(1), "{layout:?}");
        assert!(matches!(next.checkpoint(at(2), None).await, CheckpointResult::Done));
        fleet.pass(2 * LEASE_TIME_MS).await;
        assert!(next.may_deliver() && !grip.may_deliver());
    }
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_says_what_its_owner_reads_and_costs_no_write_more() {
    for (layout, told) in [(Layout::Native, Some(1_024)), (Layout::Kcl, None)] {
        let fleet = LeaseFleet::new(layout, 1);
        let mut a = bare(&fleet, "a").await;
        let grip = a.grips.recv().await.unwrap();
        for second in 1..=20 {
            fleet.pass(1_000).await;
            grip.add_read_bytes(1_000);
            assert!(matches!(grip.checkpoint(at(second), None).await, CheckpointResult::Done));
            let known = fleet.rows()[0].bytes_per_second;
            assert!(known.is_none() || second >= 10, "too early to tell: {known:?}");
        }
        assert_eq!(fleet.rows()[0].bytes_per_second, told, "{layout:?}");
        // Bytes read alone are no reason to write.
        let nonce = fleet.rows()[0].nonce;
        grip.add_read_bytes(1 << 30);
        fleet.pass(60_000).await;
        assert_eq!(fleet.rows()[0].nonce, nonce);
        grip.finish(FinishReason::Drained);
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_at_latest_keeps_its_moment_though_its_owner_says_latest_again() {
    let fleet = LeaseFleet::new(Layout::Kcl, 1);
    let mut settings = LeaseFleet::settings("a");
    settings.streams[0].start = StartPosition::Latest;
    let mut a = bare_with(&fleet, settings).await;
    let grip = a.grips.recv().await.unwrap();
    let latest = || Checkpoint::at(Position::Latest);
    assert_eq!(grip.lease().checkpoint, latest());
    let moment = Checkpoint::at(Position::AtTimestamp(1_234));
    assert!(matches!(grip.pin_latest(1_234).await, CheckpointResult::Done));
    // Nothing arrived, so the reader knows no other position.
    assert!(matches!(grip.checkpoint(latest(), None).await, CheckpointResult::Done));
    assert_eq!(fleet.rows()[0].checkpoint, moment);
    assert!(matches!(grip.checkpoint(at(5), None).await, CheckpointResult::Done));
    assert_eq!(fleet.rows()[0].checkpoint, at(5));
    assert!(matches!(grip.checkpoint(latest(), None).await, CheckpointResult::BehindCurrent));
}
