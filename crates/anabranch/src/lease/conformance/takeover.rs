//! Fencing: a worker that has lost a lease can't change it, however late its writes arrive.

use super::scene::{StoreFixture, at, start};
use crate::lease::LeaseStore;
use anabranch_model::lease::{LeaseChange, Resolution, WorkerChange, Write};

pub(super) async fn a_paused_owner_is_shut_out<S: LeaseStore>(store: &S) {
    let (mut scene, hold) = StoreFixture::owned(store, "paused-owner").await;
    let (a, b) = (scene.id("a"), scene.id("b"));
    if scene.is_native() {
        let fence = Write::worker(&a, WorkerChange::Fence { counter: 0 }, scene.nonce());
        scene.done(&fence).await;
        let beat = Write::worker(&a, WorkerChange::Beat { counter: 0 }, scene.nonce());
        scene.refused(&beat).await;
    }
    scene.take("b", 0).await;
    let nonce = scene.nonce();
    for write in [
        hold.renew(nonce),
        hold.checkpoint(start(), at(3), None, nonce),
        hold.end(start(), nonce),
        hold.release(nonce),
        hold.refuse(nonce),
        hold.hand_over(&b, nonce),
        hold.retake(nonce),
    ] {
        scene.refused(&write).await;
    }
    let lease = scene.lease(0);
    assert_eq!((lease.owner.as_ref(), &lease.checkpoint), (Some(&b), &start()));
    scene.compare().await;
}

pub(super) async fn a_late_pass_is_void_after_the_own_row_was_taken_again<S: LeaseStore>(
    store: &S,
) {
    let (mut scene, hold) = StoreFixture::owned(store, "late-pass").await;
    let b = scene.id("b");
    let release = hold.release(scene.nonce());
    assert_eq!(scene.resolve(&release).await, Resolution::StillUnknown);
    let again = hold.retake(scene.nonce());
    let hold = scene.done(&again).await.expect("taken again");
    assert_eq!(scene.resolve(&release).await, Resolution::NotApplied);
    scene.refused(&release).await;
    if scene.is_native() {
        let ask = LeaseChange::RequestHandOver { taker: b.clone(), term: hold.term };
        let ask = Write::lease(&hold.key, ask, scene.nonce());
        scene.done(&ask).await;
        let pass = hold.hand_over(&b, scene.nonce());
        let again = hold.retake(scene.nonce());
        scene.done(&again).await;
        assert_eq!(scene.resolve(&pass).await, Resolution::NotApplied);
        scene.refused(&pass).await;
    }
}

pub(super) async fn a_late_checkpoint_undoes_nothing<S: LeaseStore>(store: &S) {
    let (mut scene, hold) = StoreFixture::owned(store, "late-checkpoint").await;
    let late = hold.checkpoint(start(), at(1), None, scene.nonce());
    assert_eq!(scene.resolve(&late).await, Resolution::StillUnknown);
    let newer = hold.checkpoint(start(), at(2), None, scene.nonce());
    let hold = scene.done(&newer).await.expect("it stays the owner's");
    assert_eq!(scene.resolve(&late).await, Resolution::NotApplied);
    scene.refused(&late).await;
    let end = hold.end(at(2), scene.nonce());
    scene.done(&end).await;
    assert!(scene.lease(0).is_ended());
    scene.compare().await;
}
