//! Rows as Java's KCL writes them: read and written by this library, without losing anything.

use crate::server::{Server, client};
use anabranch::lease::stores::dynamodb::KclStreamId;
use anabranch::lease::{AnyStore, DynamoDbStore, LeaseStore};
use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::lease::{
    Lease, LeaseChange, LeaseKey, NewLease, Nonce, PendingCheckpoint, Write,
};
use anabranch_model::position::{Position, StartPosition};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use std::collections::{BTreeMap, HashMap};

const SEQUENCE: &str = "49590338271490256608559692538361571095921575989136588898";
const SHARD: &str = "shardId-000000000007";
const STREAM: &str = "123456789012:orders:1700000000";

type Item = HashMap<String, AttributeValue>;

fn s(text: &str) -> AttributeValue {
    AttributeValue::S(text.into())
}

fn n(digits: &str) -> AttributeValue {
    AttributeValue::N(digits.into())
}

fn set(shards: &[&str]) -> AttributeValue {
    AttributeValue::Ss(shards.iter().map(|shard| (*shard).to_owned()).collect())
}

fn row(attributes: &[(&str, AttributeValue)]) -> Item {
    attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

/// Returns the attributes that every version writes.
fn base(key: &str) -> Item {
    row(&[
        ("leaseKey", s(key)),
        ("leaseOwner", s("java-worker")),
        ("leaseCounter", n("41")),
        ("ownerSwitchesSinceCheckpoint", n("3")),
        ("checkpoint", s(SEQUENCE)),
        ("checkpointSubSequenceNumber", n("2")),
        ("parentShardId", set(&["shardId-000000000003", "shardId-000000000002"])),
    ])
}

fn with(mut item: Item, more: &[(&str, AttributeValue)]) -> Item {
    item.extend(row(more));
    item
}

fn kcl_2(key: &str) -> Item {
    let more = [
        ("pendingCheckpoint", s(SEQUENCE)),
        ("pendingCheckpointSubSequenceNumber", n("9")),
        ("pendingCheckpointState", AttributeValue::B(Blob::new([0, 255, 7]))),
        ("childShardIds", set(&["shardId-000000000011", "shardId-000000000010"])),
        ("startingHashKey", s("0")),
        ("endingHashKey", s("340282366920938463463374607431768211455")),
    ];
    with(base(key), &more)
}

fn kcl_3(key: &str) -> Item {
    let more = [("throughputKBps", n("0.0001")), ("checkpointOwner", s("java-leaver"))];
    with(kcl_2(key), &more)
}

/// Returns attributes that no version writes today.
fn unknown() -> Vec<(&'static str, AttributeValue)> {
    vec![
        ("later", AttributeValue::M(row(&[("a", AttributeValue::Bool(true)), ("b", n("1.5"))]))),
        ("numbers", AttributeValue::Ns(vec!["1".into(), "2".into()])),
        ("list", AttributeValue::L(vec![s("x"), AttributeValue::Null(true)])),
    ]
}

/// Formats an item independently of the order inside sets, which DynamoDB does not keep.
fn plain(item: &Item) -> BTreeMap<String, String> {
    let sorted = |names: &Vec<String>| {
        let mut names = names.clone();
        names.sort_unstable();
        format!("{names:?}")
    };
    let text = |value: &AttributeValue| match value {
        AttributeValue::Ss(names) | AttributeValue::Ns(names) => sorted(names),
        AttributeValue::M(map) => format!("{:?}", map.iter().collect::<BTreeMap<_, _>>()),
        other => format!("{other:?}"),
    };
    item.iter().map(|(name, value)| (name.clone(), text(value))).collect()
}

struct Table {
    #[expect(dead_code, reason = "held, so that it lives as long")]
    server: Server,
    client: Client,
    store: DynamoDbStore,
    multi: bool,
}

impl Table {
    async fn new(server: Server, multi: bool) -> Self {
        let (config, client) = (server.config(), client(&server.config()));
        let store = if multi {
            let known = |name: &anabranch_model::ids::StreamName| {
                (name.as_str() == "orders").then(|| STREAM.parse::<KclStreamId>().expect("an id"))
            };
            DynamoDbStore::kcl_multi_stream(&config, "app", known)
        } else {
            DynamoDbStore::kcl(&config, "app")
        };
        store.prepare().await.expect("a table");
        Self { server, client, store, multi }
    }

    fn lease_key(&self, shard: &str) -> String {
        if self.multi { format!("{STREAM}:{shard}") } else { shard.to_owned() }
    }

    async fn put(&self, item: Item) {
        let put = self.client.put_item().table_name("app").set_item(Some(item));
        put.send().await.expect("a row");
    }

    async fn raw(&self, shard: &str) -> Item {
        let get = self.client.get_item().table_name("app").consistent_read(true);
        let get = get.key("leaseKey", s(&self.lease_key(shard)));
        get.send().await.expect("a reply").item.expect("a row")
    }

    async fn lease(&self) -> Lease {
        self.store.get(&key()).await.expect("a reply").expect("a lease")
    }

    async fn done(&self, change: LeaseChange) {
        let write = Write::lease(&key(), change, Nonce(1));
        let outcome = self.store.write(&write).await.expect("an outcome");
        assert!(outcome.is_done(), "{write:?}: {outcome:?}");
    }
}

fn key() -> LeaseKey {
    LeaseKey::new("orders", SHARD)
}

fn at(sub: u64) -> Position {
    Position::At { sequence: SEQUENCE.parse().expect("digits"), sub }
}

/// A write of this library, the attributes that it sets, and those that it removes.
type Step = (LeaseChange, Vec<(&'static str, AttributeValue)>, &'static [&'static str]);

/// Returns every kind of write that an owner makes on a lease.
fn steps() -> Vec<Step> {
    const ME: &str = "rust-worker";
    let counter = |digits| ("leaseCounter", n(digits));
    let switches = |digits| ("ownerSwitchesSinceCheckpoint", n(digits));
    let checkpoint = |term, to: Position, pending| LeaseChange::Checkpoint {
        owner: ME.into(),
        term,
        replaces: at(2).into(),
        to: to.into(),
        pending,
        bytes_per_second: None,
    };
    let announced = PendingCheckpoint { position: at(12), state: None };
    vec![
        (
            LeaseChange::Take { taker: ME.into(), term: 41 },
            vec![("leaseOwner", s(ME)), counter("42"), switches("4")],
            &["checkpointOwner"],
        ),
        (LeaseChange::Renew { owner: ME.into(), term: 42 }, vec![counter("43")], &[]),
        (
            checkpoint(43, at(2), Some(announced)),
            vec![
                counter("44"),
                switches("0"),
                ("pendingCheckpoint", s(SEQUENCE)),
                ("pendingCheckpointSubSequenceNumber", n("12")),
            ],
            &["pendingCheckpointState"],
        ),
        (
            checkpoint(44, at(12), None),
            vec![counter("45"), ("checkpointSubSequenceNumber", n("12"))],
            &["pendingCheckpoint", "pendingCheckpointSubSequenceNumber"],
        ),
        (
            LeaseChange::NoteChildren(vec!["shardId-000000000021".into()]),
            vec![("childShardIds", set(&["shardId-000000000021"]))],
            &[],
        ),
        (
            LeaseChange::NoteRange(HashRange::divide_all(2)[0]),
            vec![
                ("startingHashKey", s("0")),
                ("endingHashKey", s("170141183460469231731687303715884105727")),
            ],
            &[],
        ),
        (
            LeaseChange::End { owner: ME.into(), term: 45, replaces: at(12).into() },
            vec![
                counter("46"),
                ("checkpoint", s("SHARD_END")),
                ("checkpointSubSequenceNumber", n("0")),
            ],
            &[],
        ),
        (LeaseChange::Release { owner: ME.into(), term: 46 }, vec![counter("47")], &["leaseOwner"]),
    ]
}

/// Reads a row and applies every write to it. Each attribute that KCL's own write leaves alone must
/// remain unchanged.
async fn round_trip(server: Server, multi: bool, item: Item, expected: &Lease) {
    let table = Table::new(server, multi).await;
    let mut item = with(item, &unknown());
    table.put(item.clone()).await;
    assert_eq!(&table.lease().await, expected);
    let listed = table.store.list(&"orders".into()).await.expect("a list").rows;
    assert_eq!(listed, std::slice::from_ref(expected));
    for (change, sets, removes) in steps() {
        table.done(change.clone()).await;
        item = with(item, &sets);
        for name in removes {
            item.remove(*name);
        }
        assert_eq!(plain(&table.raw(SHARD).await), plain(&item), "after {change:?}");
    }
}

fn base_lease() -> Lease {
    let new = NewLease {
        shard: SHARD.into(),
        parents: vec!["shardId-000000000002".into(), "shardId-000000000003".into()],
        range: HashRange::ALL,
        checkpoint: at(2),
    };
    let lease = new.into_lease(&"orders".into());
    Lease { owner: Some("java-worker".into()), term: 41, owner_switches: 3, range: None, ..lease }
}

fn whole_lease() -> Lease {
    let state = Some(bytes::Bytes::from_static(&[0, 255, 7]));
    Lease {
        pending: Some(PendingCheckpoint { position: at(9), state }),
        children: vec!["shardId-000000000010".into(), "shardId-000000000011".into()],
        range: HashRange::new(HashKey::MIN, HashKey::MAX),
        ..base_lease()
    }
}

/// Returns a row of each version, whether its table is multi-stream, and the expected lease.
fn fixtures() -> Vec<(&'static str, bool, Item, Lease)> {
    let multi_key = format!("{STREAM}:{SHARD}");
    let multi = [("streamName", s(STREAM)), ("shardId", s(SHARD))];
    let lease = ("entityType", s("LEASE"));
    let kcl_35 = [lease.clone()];
    let kcl_35_multi = [lease, multi[0].clone(), multi[1].clone()];
    vec![
        ("1.x", false, base(SHARD), base_lease()),
        ("2.x", false, kcl_2(SHARD), whole_lease()),
        ("2.x multi-stream", true, with(kcl_2(&multi_key), &multi), whole_lease()),
        ("3.0 to 3.4", false, kcl_3(SHARD), whole_lease()),
        ("3.5", false, with(kcl_3(SHARD), &kcl_35), whole_lease()),
        ("3.5 multi-stream", true, with(kcl_3(&multi_key), &kcl_35_multi), whole_lease()),
    ]
}

#[tokio::test]
async fn rows_of_every_version_come_back_whole_from_the_embedded_dynamodb() {
    for (version, multi, item, lease) in fixtures() {
        println!("{version}");
        round_trip(Server::embedded().await, multi, item, &lease).await;
    }
}

#[tokio::test]
async fn rows_of_every_version_come_back_whole_from_dynamodb_local() {
    for (version, multi, item, lease) in fixtures() {
        println!("{version}");
        let Some(server) = Server::java("KCL's rows on DynamoDB Local").await else { return };
        round_trip(server, multi, item, &lease).await;
    }
}

#[tokio::test]
async fn a_new_row_is_the_one_that_java_would_have_written() {
    for multi in [false, true] {
        let table = Table::new(Server::embedded().await, multi).await;
        let shard = NewLease {
            shard: SHARD.into(),
            parents: vec!["shardId-000000000003".into(), "shardId-000000000002".into()],
            range: HashRange::ALL,
            checkpoint: Position::TrimHorizon,
        };
        let orphan = NewLease {
            shard: "shardId-000000000000".into(),
            parents: Vec::new(),
            checkpoint: Position::Latest,
            ..shard.clone()
        };
        for new in [shard, orphan] {
            let write = new.create(&"orders".into(), Nonce(1));
            let outcome = table.store.write(&write).await.expect("an outcome");
            assert!(outcome.is_done(), "{outcome:?}");
        }
        let expected = |shard: &str, checkpoint| {
            let mut row = row(&[
                ("leaseKey", s(&table.lease_key(shard))),
                ("leaseCounter", n("0")),
                ("ownerSwitchesSinceCheckpoint", n("0")),
                ("checkpoint", s(checkpoint)),
                ("checkpointSubSequenceNumber", n("0")),
                ("startingHashKey", s("0")),
                ("endingHashKey", s("340282366920938463463374607431768211455")),
            ]);
            if multi {
                row = with(row, &[("streamName", s(STREAM)), ("shardId", s(shard))]);
            }
            row
        };
        let parents = set(&["shardId-000000000003", "shardId-000000000002"]);
        let child = with(expected(SHARD, "TRIM_HORIZON"), &[("parentShardId", parents)]);
        assert_eq!(plain(&table.raw(SHARD).await), plain(&child));
        let orphan = expected("shardId-000000000000", "LATEST");
        assert_eq!(plain(&table.raw("shardId-000000000000").await), plain(&orphan));
    }
}

#[tokio::test]
async fn rows_that_are_no_leases_are_left_alone_and_broken_ones_are_named() {
    let table = Table::new(Server::embedded().await, false).await;
    table.put(kcl_2(SHARD)).await;
    for (name, kind) in [
        ("Leader", "LEADER"),
        ("Migration3.0", "CLIENT_VERSION_MIGRATION"),
        ("TableMigration3.5", "TABLE_MIGRATION"),
        ("worker-1", "WORKER_METRIC_STATS"),
        ("123456789012:orders:1", "STREAM"),
        ("something", "NOT_YET_INVENTED"),
    ] {
        table.put(row(&[("leaseKey", s(name)), ("entityType", s(kind))])).await;
    }
    table.put(row(&[("leaseKey", s("shardId-000000000001")), ("leaseOwner", s("x"))])).await;
    let mut bad = base("shardId-000000000002");
    bad.insert("checkpoint".into(), s("nowhere"));
    table.put(bad).await;

    let mut no_time = base("shardId-000000000003");
    no_time.insert("checkpoint".into(), s("AT_TIMESTAMP"));
    table.put(no_time).await;
    // A lease key with another entity type: its shard may have a reader all the same.
    let other = [("leaseKey", s("shardId-000000000004")), ("entityType", s("NOT_YET_INVENTED"))];
    table.put(row(&other)).await;

    let store = table.store.clone();
    let listing = store.list(&"orders".into()).await.expect("a list");
    assert_eq!(listing.rows, [whole_lease()]);
    let left_out: Vec<_> = listing.unreadable.iter().map(|row| row.key.as_str()).collect();
    let expected = [1, 2, 3, 4].map(|shard| format!("shardId-{shard:012}"));
    assert_eq!(left_out, expected);
    let recent = store.list_recent(&["orders".into()]).await.expect("a list");
    assert_eq!(recent[&"orders".into()], listing);
    // A read of such a row by name must not report it as missing.
    for shard in ["shardId-000000000002", "Leader"] {
        let error = store.get(&LeaseKey::new("orders", shard)).await.expect_err(shard);
        assert!(error.to_string().contains(shard), "{error}");
    }
}

#[tokio::test]
async fn a_timestamp_comes_from_the_applications_own_start() {
    let table = Table::new(Server::embedded().await, false).await;
    let mut item = base(SHARD);
    item.insert("checkpoint".into(), s("AT_TIMESTAMP"));
    table.put(item).await;
    let listing = table.store.list(&"orders".into()).await.expect("a list");
    assert!(listing.rows.is_empty(), "{listing:?}");
    assert!(listing.unreadable[0].why.contains("with_start"), "{listing:?}");
    let error = table.store.get(&key()).await.expect_err("no time is known");
    assert!(error.to_string().contains("with_start"), "{error}");
    let read = async |store: &DynamoDbStore| {
        let lease = store.get(&key()).await.expect("a reply").expect("a lease");
        lease.checkpoint
    };
    let store = table.store.clone().with_start(StartPosition::AtTimestamp(1_234));
    assert_eq!(read(&store).await, Position::AtTimestamp(1_234));
    // A consumer reports its start position, also through `AnyStore`. A timestamp that helps to
    // read rows is kept when a later start position has none.
    let any = AnyStore::from(table.store.clone());
    for start in [StartPosition::AtTimestamp(5_678), StartPosition::Latest] {
        any.note_start(&"orders".into(), start);
    }
    assert_eq!(read(&table.store).await, Position::AtTimestamp(5_678));
    assert_eq!(read(&store).await, Position::AtTimestamp(5_678));
    // It is that stream's start and no other's.
    table.store.note_start(&"payments".into(), StartPosition::AtTimestamp(9));
    assert_eq!(read(&table.store).await, Position::AtTimestamp(5_678));
}

#[tokio::test]
async fn a_row_at_latest_keeps_the_moment_that_it_stands_for_where_java_reads_past_it() {
    let table = Table::new(Server::embedded().await, false).await;
    let moment = Position::AtTimestamp(1_700_000_000_123);
    let checkpoint = |replaces: Position, to: Position, term| LeaseChange::Checkpoint {
        owner: "java-worker".into(),
        term,
        replaces: replaces.into(),
        to: to.into(),
        pending: None,
        bytes_per_second: None,
    };
    let sentinel = [("checkpoint", s("LATEST")), ("checkpointSubSequenceNumber", n("0"))];
    let java = with(base(SHARD), &sentinel);
    table.put(java.clone()).await;
    assert_eq!(table.lease().await.checkpoint, Position::Latest);
    table.done(checkpoint(Position::Latest, moment, 41)).await;
    assert_eq!(table.lease().await.checkpoint, moment);
    let counted = |counter: &str| {
        let counts = [("leaseCounter", n(counter)), ("ownerSwitchesSinceCheckpoint", n("0"))];
        with(java.clone(), &counts)
    };
    let ours = with(counted("42"), &[("anabranchLatestMillis", n("1700000000123"))]);
    assert_eq!(plain(&table.raw(SHARD).await), plain(&ours));
    // It is removed together with LATEST, and when LATEST is requested again.
    for (to, text) in [(at(2), SEQUENCE), (Position::Latest, "LATEST")] {
        table.put(ours.clone()).await;
        table.done(checkpoint(if to == at(2) { moment } else { to }, to, 42)).await;
        let Position::At { sub, .. } = to else {
            assert_eq!(plain(&table.raw(SHARD).await), plain(&counted("43")));
            continue;
        };
        let done = [("checkpoint", s(text)), ("checkpointSubSequenceNumber", n(&sub.to_string()))];
        assert_eq!(plain(&table.raw(SHARD).await), plain(&with(counted("43"), &done)));
    }
    // After a checkpoint by Java, it is ignored, and our next checkpoint removes it.
    let placed = |sub| [("checkpoint", s(SEQUENCE)), ("checkpointSubSequenceNumber", n(sub))];
    table.put(with(ours, &placed("2"))).await;
    assert_eq!(table.lease().await.checkpoint, at(2));
    table.done(checkpoint(at(2), at(3), 42)).await;
    assert_eq!(plain(&table.raw(SHARD).await), plain(&with(counted("43"), &placed("3"))));
}

#[tokio::test]
async fn a_stream_without_an_id_is_refused_in_a_multi_stream_table() {
    let table = Table::new(Server::embedded().await, true).await;
    let error = table.store.list(&"payments".into()).await.expect_err("not identified");
    assert!(error.to_string().contains("stream payments"), "{error}");
}
