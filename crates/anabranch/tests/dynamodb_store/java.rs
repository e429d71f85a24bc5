//! Java's KCL on rows of this library, and this library on rows of KCL.

use crate::server::{JAVAS_KEY, Server};
use anabranch::lease::stores::dynamodb::KclStreamId;
use anabranch::lease::{DynamoDbStore, LeaseStore};
use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::{
    Lease, LeaseChange, LeaseKey, NewLease, Nonce, PendingCheckpoint, Write,
};
use anabranch_model::position::Position;
use std::path::PathBuf;
use tokio::process::Command;

/// The folder with the classes of `interop/kcl`; set by `cargo xtask test`.
const FOLDER: &str = "ANABRANCH_KCL";
const STREAM: &str = "123456789012:orders:1700000000";
const SHARD: &str = "shardId-000000000001";
const SEQUENCE: &str = "49590338271490256608559692538361571095921575989136588898";

fn key() -> LeaseKey {
    LeaseKey::new("orders", SHARD)
}

fn at(sub: u64) -> Position {
    Position::At { sequence: SEQUENCE.parse().expect("digits"), sub }
}

fn new_lease(index: u32, parents: &[&str], checkpoint: Position) -> Write {
    let new = NewLease {
        shard: ShardId::from_index(index),
        parents: parents.iter().map(|parent| (*parent).into()).collect(),
        range: HashRange::divide_all(3)[index as usize],
        checkpoint,
    };
    new.create(&"orders".into(), Nonce(1))
}

/// Creates three leases, one of them taken, with a checkpoint and its children noted.
async fn make_rows(store: &DynamoDbStore) {
    let done = async |write: Write| {
        let outcome = store.write(&write).await.expect("an outcome");
        assert!(outcome.is_done(), "{write:?}: {outcome:?}");
        outcome.token()
    };
    done(new_lease(0, &[], Position::Latest)).await;
    done(new_lease(1, &["shardId-000000000000"], Position::TrimHorizon)).await;
    done(new_lease(2, &["shardId-000000000000", SHARD], Position::TrimHorizon)).await;
    let take = LeaseChange::Take { taker: "rust".into(), term: 0 };
    let hold = done(Write::lease(&key(), take, Nonce(1))).await.expect("taken");
    let state = Some(bytes::Bytes::from_static(b"ab"));
    let pending = Some(PendingCheckpoint { position: at(7), state });
    let start = Position::TrimHorizon.into();
    done(hold.checkpoint(start, at(3).into(), pending, Nonce(1))).await;
    let children = LeaseChange::NoteChildren(vec!["shardId-000000000002".into()]);
    done(Write::lease(&key(), children, Nonce(1))).await;
}

async fn run_java(folder: PathBuf, endpoint: &str, table: &str, stream: &str) -> String {
    let class_path = format!("{0}/classes:{0}/lib/*", folder.display());
    let java = Command::new("java")
        .args(["-Xmx128m", "-cp", &class_path, "Leases", endpoint, table, stream, SHARD])
        .kill_on_drop(true)
        .output();
    let out = java.await.expect("java starts");
    let (text, errors) =
        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{text}\n{errors}");
    text.into_owned()
}

#[tokio::test]
async fn javas_kcl_reads_and_writes_our_rows_and_we_its() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        println!("skipped Java's KCL: {FOLDER} is not set; `cargo xtask test` sets it");
        return;
    };
    let Some(server) = Server::java_as("Java's KCL", JAVAS_KEY).await else { return };
    let config = server.config();
    let identify = |_: &StreamName| STREAM.parse::<KclStreamId>().ok();
    for (table, stream, store) in [
        ("single", "-", DynamoDbStore::kcl(&config, "single")),
        ("multi", STREAM, DynamoDbStore::kcl_multi_stream(&config, "multi", identify)),
    ] {
        store.prepare().await.expect("a table");
        make_rows(&store).await;
        let endpoint = format!("http://{}", server.address());
        let said = run_java(folder.clone(), &endpoint, table, stream).await;
        let leases: Vec<&str> = said.lines().filter(|line| line.starts_with("lease ")).collect();
        assert_eq!(leases.len(), 3, "{said}");
        let ours = leases.iter().find(|lease| lease.contains("leaseOwner=rust")).expect("ours");
        for part in [
            "leaseCounter=2",
            "SubsequenceNumber: 3}",
            "SubsequenceNumber: 7}",
            "pendingCheckpointState=[97, 98]",
            "ownerSwitchesSinceCheckpoint=0",
            "parentShardIds=[shardId-000000000000]",
            "childShardIds=[shardId-000000000002]",
            "startingHashKey=113427455640312821154458202477256070485",
        ] {
            assert!(ours.contains(part), "{part}: {ours}");
        }
        for write in ["renew true", "take true", "checkpoint true", "create true"] {
            assert!(said.lines().any(|line| line == write), "{write}: {said}");
        }

        let lease = store.get(&key()).await.expect("a reply").expect("a lease");
        let expected = Lease {
            owner: Some("java".into()),
            term: 5,
            checkpoint: at(5).into(),
            pending: None,
            ..lease.clone()
        };
        assert_eq!(lease, expected);
        let made = LeaseKey::new("orders", "shardId-000000000009");
        let made = store.get(&made).await.expect("a reply").expect("Java's lease");
        assert_eq!(made.parents, [SHARD.into()]);
        assert_eq!(made.range, HashRange::new(HashKey(5), HashKey(99)));
        assert_eq!(made.checkpoint, Position::TrimHorizon);
    }
}
