//! Cost of leases on DynamoDB: calls and capacity units, as the service counts them.

use crate::server::Server;
use anabranch::lease::stores::dynamodb::{KclStreamId, StoreUsage};
use anabranch::lease::{DynamoDbStore, LeaseStore};
use anabranch_model::hash::HashRange;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{
    LeaseChange, LeaseKey, LeaseToken, NewLease, Nonce, WorkerChange, WorkerId, Write,
};
use anabranch_model::position::Position;
use tokio::task::JoinSet;

const WORKERS: u64 = 10;
const LEASES: u32 = 100;

fn worker(i: u64) -> WorkerId {
    WorkerId::of_join("host-12.example.internal", i)
}

fn join(i: u64) -> Write {
    let join = WorkerChange::Join {
        host: "host-12.example.internal".into(),
        started_ms: 1,
        reads: None,
        lease_time_ms: Some(10_000),
    };
    Write::worker(&worker(i), join, Nonce(i))
}

fn create(i: u32) -> Write {
    let new = NewLease {
        shard: ShardId::from_index(i),
        parents: Vec::new(),
        range: HashRange::ALL,
        checkpoint: Position::TrimHorizon,
    };
    new.create(&"orders".into(), Nonce(1_000 + u64::from(i)))
}

fn take(i: u32, taker: u64) -> Write {
    let key = LeaseKey { stream: "orders".into(), shard: ShardId::from_index(i) };
    let change = LeaseChange::Take { taker: worker(taker), term: 0 };
    // Nonces are random in production.
    Write::lease(&key, change, Nonce(u64::from(i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7))
}

fn since(before: StoreUsage, after: StoreUsage) -> StoreUsage {
    StoreUsage {
        reads: after.reads - before.reads,
        writes: after.writes - before.writes,
        conflicts: after.conflicts - before.conflicts,
        read_units: after.read_units - before.read_units,
        write_units: after.write_units - before.write_units,
    }
}

async fn done(store: &DynamoDbStore, write: Write) {
    let outcome = store.write(&write).await.expect("an outcome");
    assert!(outcome.is_done(), "{write:?}: {outcome:?}");
}

/// Takes the leases concurrently, with a separate store for each worker, as in separate processes.
async fn takes_at_once(server: &Server) -> u64 {
    let mut tasks = JoinSet::new();
    for taker in 0..WORKERS {
        let store = DynamoDbStore::native(&server.config(), "leases");
        tasks.spawn(async move {
            for i in (0..LEASES).filter(|i| u64::from(*i) % WORKERS == taker) {
                done(&store, take(i, taker)).await;
            }
            store.usage().conflicts
        });
    }
    tasks.join_all().await.into_iter().sum()
}

/// Measures the cost of an idle fleet of ten workers with a hundred leases.
async fn costs(server: Server) {
    let store = DynamoDbStore::native(&server.config(), "leases");
    store.prepare().await.expect("a table");
    for i in 0..WORKERS {
        done(&store, join(i)).await;
    }
    for i in 0..LEASES {
        done(&store, create(i)).await;
    }
    let version = store.poll().await.expect("a look").version.expect("a version");
    let conflicts = takes_at_once(&server).await;
    let moved = store.poll().await.expect("a look").version.expect("a version") - version;
    assert_eq!(moved, u64::from(LEASES), "each take moves the version once");

    let before = store.usage();
    store.poll().await.expect("a look");
    let look = since(before, store.usage());
    let before = store.usage();
    let beat = WorkerChange::Beat { counter: 0 };
    done(&store, Write::worker(&worker(0), beat, Nonce(77))).await;
    let beat = since(before, store.usage());
    let before = store.usage();
    store.list(&"orders".into()).await.expect("a list");
    let list = since(before, store.usage());
    println!("{LEASES} takes by {WORKERS} workers at once: {conflicts} conflicts");
    println!("look: {look:?}\nbeat: {beat:?}\nlist of {LEASES}: {list:?}");

    assert_eq!((look.reads, look.writes), (1, 0), "a look is one call, whatever there is");
    assert!(look.read_units <= 2.0, "{look:?}");
    assert_eq!((beat.reads, beat.writes), (0, 1), "a beat is one call, whatever is owned");
    assert!(beat.write_units <= 1.0, "{beat:?}");
    assert_eq!((list.reads, list.writes), (1, 0));
}

/// Measures the cost and the frequency of polls of KCL's table with a hundred leases.
async fn kcl_costs(server: Server) {
    let config = server.config();
    let identify =
        |stream: &StreamName| KclStreamId::new("123456789012", stream.as_str(), 1_700_000_000).ok();
    let streams: Vec<StreamName> = vec!["orders".into(), "payments".into()];
    for (streams, store) in [
        (&streams[..1], DynamoDbStore::kcl(&config, "single")),
        (&streams[..], DynamoDbStore::kcl_multi_stream(&config, "multi", identify)),
    ] {
        store.prepare().await.expect("a table");
        for i in 0..LEASES {
            let stream = &streams[i as usize % streams.len()];
            let new = NewLease {
                shard: ShardId::from_index(i),
                parents: vec![ShardId::from_index(i + 1_000)],
                range: HashRange::divide_all(LEASES)[i as usize],
                checkpoint: Position::TrimHorizon,
            };
            done(&store, new.create(stream, Nonce(1))).await;
            let key = LeaseKey { stream: stream.clone(), shard: ShardId::from_index(i) };
            let take = LeaseChange::Take { taker: worker(u64::from(i) % WORKERS), term: 0 };
            done(&store, Write::lease(&key, take, Nonce(1))).await;
            let sequence = "49590338271490256608559692538361571095921575989136588898";
            let at = Position::At { sequence: sequence.parse().expect("digits"), sub: 0 };
            let hold = LeaseToken { key, owner: worker(u64::from(i) % WORKERS), term: 1 };
            let start = Position::TrimHorizon.into();
            done(&store, hold.checkpoint(start, at.into(), None, Nonce(1))).await;
        }
        let before = store.usage();
        let rows = store.list_recent(streams).await.expect("the rows");
        assert_eq!(rows.values().map(|listing| listing.rows.len()).sum::<usize>(), LEASES as usize);
        let look = since(before, store.usage());
        let pause_ms = store.poll_interval().max(1_000);
        println!("{} streams: {look:?}, each {pause_ms} ms", streams.len());
        assert_eq!((look.reads, look.writes), (1, 0), "one scan, however many streams there are");
        let before = store.usage();
        store.probe().await.expect("what is to be seen");
        for stream in streams {
            store.list(stream).await.expect("the rows");
        }
        let audit = since(before, store.usage());
        // As the coordinator spaces audits, except for a random eighth.
        let audit_ms =
            (store.poll_interval() * 20 * (1 + streams.len() as u64)).max(60_000) * 15 / 16;
        println!("an audit: {audit:?}, each {audit_ms} ms");
        #[expect(clippy::cast_precision_loss, reason = "pauses are short")]
        let per_second = look.read_units * 1_000.0 / pause_ms as f64
            + audit.read_units * 1_000.0 / audit_ms as f64;
        assert!(look.read_units > 0.0 && per_second <= 3.0, "{per_second} units a second");
        if streams.len() == 1 {
            assert!(pause_ms < 2_000, "a released lease is seen within 2 s: {pause_ms}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_of_a_kcl_table_takes_three_units_a_second_on_the_embedded_dynamodb() {
    kcl_costs(Server::embedded().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_of_a_kcl_table_takes_three_units_a_second_on_dynamodb_local() {
    let Some(server) = Server::java("costs of KCL's table on DynamoDB Local").await else { return };
    kcl_costs(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_fleet_costs_a_beat_and_a_look_on_the_embedded_dynamodb() {
    costs(Server::embedded().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_fleet_costs_a_beat_and_a_look_on_dynamodb_local() {
    let Some(server) = Server::java("costs on DynamoDB Local").await else { return };
    costs(server).await;
}
