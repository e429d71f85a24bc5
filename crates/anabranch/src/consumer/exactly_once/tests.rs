//! The closure's call: in the very poll that found the lease held, and for nothing that is stored.

use super::*;
use crate::consumer::resume::Resume;
use crate::lease::SqliteStore;
use crate::lease::pulse::Pulse;
use anabranch_model::lease::{HandOver, Lease, Nonce};
use anabranch_model::sequence::SequenceNumber;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

fn lease() -> Lease {
    Lease {
        key: LeaseKey::new("s", "shardId-000000000000"),
        owner: Some("me".into()),
        term: 1,
        hand_over: HandOver::None,
        checkpoint: Checkpoint::at(Position::TrimHorizon),
        pending: None,
        parents: vec![],
        children: vec![],
        range: None,
        bytes_per_second: None,
        owner_switches: 0,
        nonce: Nonce(0),
    }
}

fn record(low: u64) -> UserRecord {
    UserRecord {
        sequence: SequenceNumber::from_limbs(0, 0, low).expect("it has few digits"),
        sub: 0,
        aggregated: false,
        partition_key: "key".into(),
        explicit_hash_key: None,
        data: "data".into(),
        arrival_ms: 1,
    }
}

#[tokio::test(start_paused = true)]
async fn the_closure_is_called_in_the_poll_that_found_the_lease_held_though_a_write_is_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, lease) = (Clock::of_runtime(), lease());
    let pulse = Arc::new(Pulse::new(10_000, clock.now_ms()));
    let own = lease.hold().unwrap();
    let held = Arc::new(Held::new(lease.clone(), own, None, pulse, Arc::default(), clock.now_ms()));
    let given = Arc::new(AtomicUsize::new(0));
    let into = Arc::clone(&given);
    let handle = move |batch: TransactionBatch<SqliteStore>| {
        into.fetch_add(batch.len(), Ordering::Relaxed);
        std::future::pending::<Result<(), HandlerError>>()
    };
    let work = Committing {
        shape: Arc::new(ExactlyOnce { handle, most: 10 }),
        desk: Arc::new(Desk {
            shard: Arc::new(lease.key.clone()),
            held: Arc::clone(&held),
            store: Arc::new(SqliteStore::open(folder.path().join("leases.db"), "app").unwrap()),
            turn: Arc::default(),
            clock,
            chance: Chance::seeded(1),
        }),
    };
    let progress = Progress::new(&Resume::of(&lease.checkpoint, 1));
    let records = [record(1), record(2), record(3)];
    // How many records the closure has been given when the call was polled once.
    let poll_once = async || {
        let (progress, records) = (&progress, &records);
        let call = Call { lane: 0, progress, records, behind_ms: 0, at_end: false, room: None };
        let mut handling = pin!(work.handle(call));
        poll_fn(|context| Poll::Ready(handling.as_mut().poll(context).is_pending())).await;
        given.swap(0, Ordering::Relaxed)
    };
    let write = held.row().await;
    assert_eq!(poll_once().await, 3, "a write to the row may take all that is left of the lease");
    drop(write);
    let checkpoint = Checkpoint::at(records[1].position());
    assert!(held.see(&Lease { checkpoint, ..lease.clone() }).await);
    assert_eq!(poll_once().await, 1, "two were stored by a call that was dropped");
}
