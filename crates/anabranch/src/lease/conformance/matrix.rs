//! Every kind of write under every circumstance.

use super::scene::{StoreFixture, at, start};
use crate::lease::LeaseStore;
use anabranch_model::hash::HashRange;
use anabranch_model::lease::{
    Layout, LeaseChange, LeaseToken, Nonce, PendingCheckpoint, Resolution, StreamChange,
    WorkerChange, Write,
};

/// A write to a lease that `a` owns and that is at its start.
#[derive(Clone, Copy, Debug)]
enum LeaseWrite {
    Renew,
    Take,
    Release,
    Name,
    Withdraw,
    Refuse,
    Unrefuse,
    Pass,
    Checkpoint,
    Prepare,
    End,
    NoteChildren,
    NoteRange,
    Delete,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Circumstance {
    Right,
    OldCounter,
    NewerCounter,
    OtherOwner,
    MissingRow,
    HandOverPending,
    ReplyLost,
    AppliedLate,
}

const ACTS: [LeaseWrite; 14] = [
    LeaseWrite::Renew,
    LeaseWrite::Take,
    LeaseWrite::Release,
    LeaseWrite::Name,
    LeaseWrite::Withdraw,
    LeaseWrite::Refuse,
    LeaseWrite::Unrefuse,
    LeaseWrite::Pass,
    LeaseWrite::Checkpoint,
    LeaseWrite::Prepare,
    LeaseWrite::End,
    LeaseWrite::NoteChildren,
    LeaseWrite::NoteRange,
    LeaseWrite::Delete,
];

const CIRCUMSTANCES: [Circumstance; 8] = [
    Circumstance::Right,
    Circumstance::OldCounter,
    Circumstance::NewerCounter,
    Circumstance::OtherOwner,
    Circumstance::MissingRow,
    Circumstance::HandOverPending,
    Circumstance::ReplyLost,
    Circumstance::AppliedLate,
];

impl LeaseWrite {
    fn exists_in(self, layout: Layout) -> bool {
        match self {
            Self::Renew => layout == Layout::Kcl,
            _ => true,
        }
    }

    /// Returns true if the write's condition names a counter.
    fn is_fenced(self, layout: Layout) -> bool {
        match self {
            Self::NoteChildren | Self::NoteRange => false,
            Self::Delete => layout == Layout::Native,
            _ => true,
        }
    }

    /// Returns true if the write's condition names the owner beside the counter.
    fn is_the_owners(self, layout: Layout) -> bool {
        match self {
            Self::Release | Self::Refuse | Self::Unrefuse | Self::Pass => true,
            Self::Checkpoint | Self::Prepare | Self::End => layout == Layout::Native,
            _ => false,
        }
    }

    /// Returns the write that must precede this one, if there is one.
    fn before<S: LeaseStore>(
        self,
        scene: &mut StoreFixture<'_, S>,
        hold: &LeaseToken,
    ) -> Option<Write> {
        let nonce = scene.nonce();
        match self {
            Self::Withdraw | Self::Pass => Some(name(scene, hold, nonce)),
            Self::Delete => Some(hold.end(start(), nonce)),
            _ => None,
        }
    }

    fn write<S: LeaseStore>(self, scene: &mut StoreFixture<'_, S>, hold: &LeaseToken) -> Write {
        let (b, term, nonce) = (scene.id("b"), hold.term, scene.nonce());
        let lease = |change| Write::lease(&hold.key, change, nonce);
        match self {
            Self::Renew => hold.renew(nonce),
            Self::Take => lease(LeaseChange::Take { taker: b, term }),
            Self::Release => hold.release(nonce),
            Self::Name => name(scene, hold, nonce),
            Self::Withdraw => lease(LeaseChange::WithdrawRequest { taker: b, term }),
            Self::Refuse => hold.refuse(nonce),
            Self::Unrefuse => hold.allow_hand_over(nonce),
            Self::Pass => hold.hand_over(&b, nonce),
            Self::Checkpoint => hold.checkpoint_at_rate(start(), at(7), None, Some(1 << 20), nonce),
            Self::Prepare => {
                let state = Some(bytes::Bytes::from_static(b"\x00state\xff"));
                let pending = PendingCheckpoint { position: at(9).lowest(), state };
                hold.checkpoint(start(), start(), Some(pending), nonce)
            }
            Self::End => hold.end(start(), nonce),
            Self::NoteChildren => {
                let children = vec!["shardId-000000000007".into(), "shardId-000000000008".into()];
                lease(LeaseChange::NoteChildren(children))
            }
            Self::NoteRange => {
                let halves = HashRange::divide_all(2);
                lease(LeaseChange::NoteRange(halves[1]))
            }
            Self::Delete => lease(LeaseChange::Delete { term }),
        }
    }
}

fn name<S: LeaseStore>(scene: &StoreFixture<'_, S>, hold: &LeaseToken, nonce: Nonce) -> Write {
    let change = LeaseChange::RequestHandOver { taker: scene.id("b"), term: hold.term };
    Write::lease(&hold.key, change, nonce)
}

pub(super) async fn every_write_in_every_circumstance<S: LeaseStore>(store: &S) {
    for act in ACTS {
        for circumstance in CIRCUMSTANCES {
            if act.exists_in(store.layout()) {
                one(store, act, circumstance).await;
            }
        }
    }
}

async fn one<S: LeaseStore>(store: &S, act: LeaseWrite, circumstance: Circumstance) {
    let (mut scene, mut hold) =
        StoreFixture::owned(store, format!("{act:?}-{circumstance:?}")).await;
    // A second term, so that there is an older counter.
    let again = hold.retake(scene.nonce());
    hold = scene.done(&again).await.expect("taken again");
    if let Some(write) = act.before(&mut scene, &hold) {
        hold = scene.done(&write).await.expect("it stays the owner's");
    }
    let fenced = act.is_fenced(store.layout());
    match circumstance {
        Circumstance::Right => {
            let write = act.write(&mut scene, &hold);
            scene.done(&write).await;
        }
        Circumstance::OldCounter | Circumstance::NewerCounter => {
            let older = circumstance == Circumstance::OldCounter;
            hold.term = if older { hold.term - 1 } else { hold.term + 1 };
            let write = act.write(&mut scene, &hold);
            let outcome = scene.write(&write).await;
            assert_eq!(outcome.is_done(), !fenced, "{act:?}, {circumstance:?}: {outcome:?}");
        }
        Circumstance::OtherOwner => {
            hold.owner = scene.id("c");
            let write = act.write(&mut scene, &hold);
            let outcome = scene.write(&write).await;
            let anyone = !act.is_the_owners(store.layout());
            assert_eq!(outcome.is_done(), anyone, "{act:?} by another: {outcome:?}");
        }
        Circumstance::MissingRow => {
            hold.key = scene.key(77);
            let write = act.write(&mut scene, &hold);
            let outcome = scene.write(&write).await;
            // KCL deletes without a condition.
            assert_eq!(outcome.is_done(), matches!(act, LeaseWrite::Delete) && !scene.is_native());
        }
        Circumstance::HandOverPending => {
            if !matches!(act, LeaseWrite::Withdraw | LeaseWrite::Pass) {
                let nonce = scene.nonce();
                let write = name(&scene, &hold, nonce);
                scene.done(&write).await;
            }
            let write = act.write(&mut scene, &hold);
            scene.done(&write).await;
        }
        Circumstance::ReplyLost => {
            let write = act.write(&mut scene, &hold);
            assert_ne!(scene.resolve(&write).await, Resolution::Applied, "{act:?}: not yet sent");
            let _lost = scene.done(&write).await;
            assert_eq!(scene.resolve(&write).await, Resolution::Applied, "{act:?}: reply lost");
        }
        Circumstance::AppliedLate => {
            let write = act.write(&mut scene, &hold);
            assert_eq!(scene.resolve(&write).await, Resolution::StillUnknown, "{act:?}: late");
            scene.take("c", 0).await;
            let outcome = scene.write(&write).await;
            assert_eq!(outcome.is_done(), !fenced, "{act:?}, late: {outcome:?}");
        }
    }
    scene.compare().await;
    scene.tidy().await;
}

/// Checks that a row is created once, whatever becomes of it and of later attempts.
pub(super) async fn creates<S: LeaseStore>(store: &S) {
    let mut scene = StoreFixture::new(store, "creates");
    scene.join("a").await;
    let (create, other) = (scene.new_lease(0), scene.new_lease(0));
    assert_eq!(scene.resolve(&create).await, Resolution::StillUnknown, "not yet sent");
    scene.done(&create).await;
    // KCL's rows don't record who created them, so a lost reply does not resolve to success there.
    let lost = if scene.is_native() { Resolution::Applied } else { Resolution::NotApplied };
    assert_eq!(scene.resolve(&create).await, lost, "reply lost");
    for late in [&create, &other] {
        scene.refused(late).await;
    }
    assert_eq!(scene.resolve(&other).await, Resolution::NotApplied, "another made the row");
    // Neither an owner nor the shard's end permits a second row: an ended row is a tombstone.
    let hold = scene.take("a", 0).await;
    scene.refused(&other).await;
    let end = hold.end(start(), scene.nonce());
    let hold = scene.done(&end).await.expect("it stays the owner's");
    scene.refused(&create).await;
    scene.refused(&other).await;
    let delete = LeaseChange::Delete { term: hold.term };
    let delete = Write::lease(&hold.key, delete, scene.nonce());
    scene.done(&delete).await;
    scene.done(&other).await;
    scene.compare().await;
    scene.tidy().await;
}

pub(super) async fn worker_rows<S: LeaseStore>(store: &S) {
    if store.layout() == Layout::Kcl {
        return;
    }
    let beat = |counter| WorkerChange::Beat { counter };
    let fence = |counter| WorkerChange::Fence { counter };
    let leave = |counter| WorkerChange::Leave { counter };
    let retire = |counter| WorkerChange::AnnounceLeaving { counter };
    // Each case lists the changes before, the change, and whether it is applied.
    let reads = |counter, streams: &[&str]| {
        let streams = streams.iter().map(|stream| (*stream).into()).collect();
        WorkerChange::SetStreams { counter, streams }
    };
    let cases: [(&[WorkerChange], WorkerChange, bool); 26] = [
        (&[], beat(0), true),
        (&[], beat(1), false),
        (&[beat(0)], beat(0), false),
        (&[beat(0)], beat(1), true),
        (&[], fence(0), true),
        (&[beat(0)], fence(0), false),
        (&[fence(0)], beat(0), false),
        (&[fence(0)], fence(0), false),
        (&[], leave(0), true),
        (&[leave(0)], beat(0), false),
        (&[], retire(0), true),
        (&[], retire(1), false),
        (&[fence(0)], retire(0), false),
        (&[retire(0)], beat(0), false),
        (&[retire(0)], beat(1), true),
        (&[retire(0)], fence(1), true),
        (&[retire(0)], leave(1), true),
        (&[], reads(0, &["orders", "payments"]), true),
        (&[], reads(1, &["orders"]), false),
        (&[reads(0, &["orders"])], reads(1, &[]), true),
        (&[reads(0, &["orders"])], beat(0), false),
        (&[fence(0)], reads(0, &["orders"]), false),
        (&[], WorkerChange::Delete, false),
        (&[leave(0)], WorkerChange::Delete, true),
        (&[fence(0), WorkerChange::Delete], beat(0), false),
        (
            &[fence(0)],
            WorkerChange::Join {
                host: "again".into(),
                started_ms: 2,
                reads: None,
                lease_time_ms: None,
            },
            false,
        ),
    ];
    for (i, (before, change, applied)) in cases.into_iter().enumerate() {
        let mut scene = StoreFixture::new(store, format!("worker-{i}"));
        scene.join("a").await;
        for change in before {
            let write = Write::worker(&scene.id("a"), change.clone(), scene.nonce());
            scene.done(&write).await;
        }
        let write = Write::worker(&scene.id("a"), change, scene.nonce());
        assert_ne!(scene.resolve(&write).await, Resolution::Applied, "{write:?}: not yet sent");
        assert_eq!(scene.write(&write).await.is_done(), applied, "{before:?}, then {write:?}");
        if applied {
            assert_eq!(scene.resolve(&write).await, Resolution::Applied, "{write:?}: reply lost");
        }
        scene.compare().await;
        scene.tidy().await;
    }
    let (mut scene, _) = StoreFixture::owned(store, "worker-named").await;
    let write = |scene: &mut StoreFixture<'_, S>, change| {
        let id = scene.id("a");
        Write::worker(&id, change, scene.nonce())
    };
    let (fence, delete) = (write(&mut scene, fence(0)), write(&mut scene, WorkerChange::Delete));
    scene.done(&fence).await;
    scene.refused(&delete).await;
    scene.take("b", 0).await;
    scene.done(&delete).await;
    scene.tidy().await;
}

pub(super) async fn facts<S: LeaseStore>(store: &S) {
    if store.layout() == Layout::Kcl {
        return;
    }
    let mut scene = StoreFixture::new(store, "facts");
    let stream = scene.stream.clone();
    let note = |t0_ms| Write::stream(&stream, StreamChange::NoteStart { t0_ms, created_ms: 5 });
    let mark = |created_ms| Write::stream(&stream, StreamChange::MarkSynced { created_ms });
    scene.refused(&mark(5)).await;
    scene.done(&note(1)).await;
    scene.refused(&note(2)).await;
    assert_eq!(scene.resolve(&note(1)).await, Resolution::Applied);
    assert_eq!(scene.resolve(&note(2)).await, Resolution::NotApplied);
    assert_eq!(scene.resolve(&mark(5)).await, Resolution::StillUnknown);
    scene.refused(&mark(6)).await;
    scene.done(&mark(5)).await;
    assert_eq!(scene.resolve(&mark(5)).await, Resolution::Applied);
    scene.done(&mark(5)).await;
}
