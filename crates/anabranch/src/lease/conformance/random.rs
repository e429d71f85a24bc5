//! Random writes: the store must agree with the pure table on each of them.

use super::scene::{StoreFixture, at, start};
use crate::clock::Rng;
use crate::lease::LeaseStore;
use anabranch_model::hash::HashRange;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::{
    Checkpoint, LeaseChange, LeaseToken, PendingCheckpoint, WorkerChange, WorkerId, Write,
};
use anabranch_model::position::Position;

const STEPS: u32 = 400;
/// Number of steps after which the row is read.
const READ_EVERY: u32 = 8;
const SHARDS: u64 = 2;
const NAMES: [&str; 3] = ["a", "b", "c"];

pub(super) async fn writes_agree_with_the_table<S: LeaseStore>(store: &S, seed: u64) {
    let mut scene = StoreFixture::new(store, format!("random-{seed}"));
    let chance = Rng::seeded(seed);
    for step in 0..STEPS {
        let write = if chance.below(4) == 0 && scene.is_native() {
            worker_write(&mut scene, &chance)
        } else {
            lease_write(&mut scene, &chance)
        };
        // The outcome carries the row too, so reading the row itself now and then is enough.
        let _either = if step.is_multiple_of(READ_EVERY) {
            scene.write(&write).await
        } else {
            scene.write_only(&write).await
        };
    }
    scene.compare().await;
    scene.tidy().await;
}

fn some_worker<S: LeaseStore>(scene: &StoreFixture<'_, S>, chance: &Rng) -> WorkerId {
    let index = usize::try_from(chance.below(3)).unwrap_or(0);
    // Java's workers don't support hand-overs.
    if index == 2 && !scene.is_native() { "java".into() } else { scene.id(NAMES[index]) }
}

fn worker_write<S: LeaseStore>(scene: &mut StoreFixture<'_, S>, chance: &Rng) -> Write {
    let id = some_worker(scene, chance);
    let known = scene.table.worker(&id).map_or(0, |worker| worker.counter);
    let counter = near(known, chance);
    let pulse = match chance.below(10) {
        0 | 1 => WorkerChange::Join {
            host: "h".into(),
            started_ms: chance.below(9),
            reads: (chance.below(2) == 0).then(|| some_streams(chance)),
            lease_time_ms: (chance.below(2) == 0).then(|| chance.below(100_000)),
        },
        2..=4 => WorkerChange::Beat { counter },
        5 => WorkerChange::Fence { counter },
        6 => WorkerChange::Leave { counter },
        7 => WorkerChange::AnnounceLeaving { counter },
        8 => WorkerChange::SetStreams { counter, streams: some_streams(chance) },
        _ => WorkerChange::Delete,
    };
    Write::worker(&id, pulse, scene.nonce())
}

fn lease_write<S: LeaseStore>(scene: &mut StoreFixture<'_, S>, chance: &Rng) -> Write {
    let shard = u32::try_from(chance.below(SHARDS)).unwrap_or(0);
    let key = scene.key(shard);
    let row = scene.table.lease(&key).cloned();
    let term = near(row.as_ref().map_or(0, |row| row.term), chance);
    // Usually the actual owner, so that most writes are applied.
    let owner = row.as_ref().and_then(|row| row.owner.clone()).filter(|_| chance.below(4) > 0);
    let owner = owner.unwrap_or_else(|| some_worker(scene, chance));
    let other = some_worker(scene, chance);
    let hold = LeaseToken { key: key.clone(), owner, term };
    let known = row.map_or_else(start, |row| row.checkpoint);
    let replaces = if chance.below(5) == 0 { some_checkpoint(chance) } else { known };
    let nonce = scene.nonce();
    let lease = |change| Write::lease(&key, change, nonce);
    match chance.below(20) {
        0 | 1 => scene.new_lease(shard),
        2..=4 => lease(LeaseChange::Take { taker: other, term }),
        5 => hold.release(nonce),
        6 | 7 => lease(LeaseChange::RequestHandOver { taker: other, term }),
        8 => lease(LeaseChange::WithdrawRequest { taker: other, term }),
        9 => hold.refuse(nonce),
        10 => hold.allow_hand_over(nonce),
        11 | 12 => hold.hand_over(&other, nonce),
        13 => hold.renew(nonce),
        14..=16 => {
            let (to, pending) = (some_checkpoint(chance), some_pending(chance));
            let rate = (chance.below(2) == 0).then(|| chance.below(1_000_000));
            hold.checkpoint_at_rate(replaces, to, pending, rate, nonce)
        }
        17 if chance.below(3) == 0 => hold.end(replaces, nonce),
        17 => lease(LeaseChange::NoteChildren(vec![key.shard.clone()])),
        18 => {
            let parts = HashRange::divide_all(3);
            lease(LeaseChange::NoteRange(parts[1]))
        }
        _ => lease(LeaseChange::Delete { term }),
    }
}

fn some_streams(chance: &Rng) -> Vec<StreamName> {
    ["orders", "payments.v2", "re_funds"]
        .into_iter()
        .filter(|_| chance.below(2) == 0)
        .map(Into::into)
        .collect()
}

/// Returns the number itself most of the time, otherwise a neighbor.
fn near(number: u64, chance: &Rng) -> u64 {
    match chance.below(9) {
        0 => number + 1,
        1 => number.saturating_sub(1),
        _ => number,
    }
}

fn some_checkpoint(chance: &Rng) -> Checkpoint {
    let position = |chance: &Rng| match chance.below(9) {
        0 => Position::TrimHorizon,
        1 => Position::Latest,
        _ => at(chance.below(1_000)).lowest(),
    };
    let lanes = (0..=chance.below(3) / 2).map(|_| position(chance)).collect();
    Checkpoint::of_lanes(lanes).unwrap_or_else(start)
}

fn some_pending(chance: &Rng) -> Option<PendingCheckpoint> {
    let state = (chance.below(2) == 0).then(|| bytes::Bytes::from(vec![0, 1, 255]));
    let pending = PendingCheckpoint { position: at(chance.below(1_000)).lowest(), state };
    (chance.below(3) == 0).then_some(pending)
}
