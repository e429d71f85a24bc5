//! The store's reaction to a failing service: never a guess, and helpful messages.

use crate::server::{Server, config_for};
use crate::wire::{FaultyProxy, RequestFault};
use anabranch::lease::{DynamoDbStore, LeaseStore, StoreError};
use anabranch_model::hash::HashRange;
use anabranch_model::lease::{
    Layout, Lease, LeaseChange, LeaseKey, NewLease, Nonce, Resolution, StreamChange, WorkerChange,
    WorkerId, Write, WriteOutcome, resolve,
};
use anabranch_model::position::Position;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// A server, a proxy before it, and a store behind the proxy with one lease that `a` owns under
/// term 1.
struct StoreScenario {
    server: Server,
    wire: FaultyProxy,
    store: DynamoDbStore,
}

impl StoreScenario {
    async fn new(layout: Layout) -> Self {
        let server = Server::embedded().await;
        let wire = FaultyProxy::to(server.address()).await;
        let store = match layout {
            Layout::Native => DynamoDbStore::native(&wire.config(), "leases"),
            Layout::Kcl => DynamoDbStore::kcl(&wire.config(), "leases"),
        };
        store.prepare().await.expect("a table");
        let scene = Self { server, wire, store };
        for write in [create(0), take("a", 0)] {
            assert!(scene.write(&write).await.is_done(), "{write:?}");
        }
        if layout == Layout::Native {
            assert!(scene.write(&join("a")).await.is_done());
        }
        scene
    }

    async fn write(&self, write: &Write) -> WriteOutcome {
        self.store.write(write).await.expect("an outcome")
    }

    async fn resolve(&self, write: &Write) -> Resolution {
        let row = self.store.read_back(write).await.expect("a row");
        resolve(self.store.layout(), write, &row)
    }

    async fn lease(&self) -> Lease {
        self.store.get(&key(0)).await.expect("a reply").expect("a lease")
    }
}

fn key(shard: u32) -> LeaseKey {
    LeaseKey::new("s", format!("shardId-{shard:012}"))
}

fn create(shard: u32) -> Write {
    let new = NewLease {
        shard: key(shard).shard,
        parents: Vec::new(),
        range: HashRange::ALL,
        checkpoint: Position::TrimHorizon,
    };
    new.create(&"s".into(), Nonce(100 + u64::from(shard)))
}

fn take(taker: &str, term: u64) -> Write {
    let change = LeaseChange::Take { taker: taker.into(), term };
    Write::lease(&key(0), change, Nonce(200 + term))
}

fn name(taker: &str) -> Write {
    Write::lease(&key(0), LeaseChange::RequestHandOver { taker: taker.into(), term: 1 }, Nonce(300))
}

fn join(id: &str) -> Write {
    let join =
        WorkerChange::Join { host: "h".into(), started_ms: 1, reads: None, lease_time_ms: None };
    Write::worker(&id.into(), join, Nonce(400))
}

fn beat(counter: u64) -> Write {
    Write::worker(&WorkerId::from("a"), WorkerChange::Beat { counter }, Nonce(500 + counter))
}

fn checkpoint() -> Write {
    let sequence = "49590338271490256608559692538361571095921575989136588898".parse();
    let to = Position::At { sequence: sequence.expect("digits"), sub: 2 };
    let (replaces, to) = (Position::TrimHorizon.into(), to.into());
    let change = LeaseChange::Checkpoint {
        owner: "a".into(),
        term: 1,
        replaces,
        to,
        pending: None,
        bytes_per_second: None,
    };
    Write::lease(&key(0), change, Nonce(600))
}

fn mark() -> Write {
    Write::stream(&"s".into(), StreamChange::MarkSynced { created_ms: 5 })
}

fn note() -> Write {
    Write::stream(&"s".into(), StreamChange::NoteStart { t0_ms: 1, created_ms: 5 })
}

/// Returns writes that the scenario's rows allow, with the operation that carries each out.
fn writes(layout: Layout) -> Vec<(&'static str, Write)> {
    match layout {
        Layout::Native => vec![
            ("TransactWriteItems", create(1)),
            ("TransactWriteItems", name("b")),
            ("TransactWriteItems", take("b", 1)),
            ("TransactWriteItems", join("b")),
            ("UpdateItem", beat(0)),
            ("UpdateItem", checkpoint()),
            ("PutItem", note()),
        ],
        Layout::Kcl => vec![
            ("PutItem", create(1)),
            ("UpdateItem", take("a", 1)),
            ("UpdateItem", checkpoint()),
            ("DeleteItem", Write::lease(&key(0), LeaseChange::Delete { term: 1 }, Nonce(1))),
        ],
    }
}

#[tokio::test]
async fn a_write_whose_reply_is_lost_is_unknown_and_found_by_reading_back() {
    for layout in [Layout::Native, Layout::Kcl] {
        for (operation, write) in writes(layout) {
            let scene = StoreScenario::new(layout).await;
            scene.wire.next(operation, RequestFault::LoseReply);
            assert_eq!(scene.write(&write).await, WriteOutcome::Unknown, "{write:?}");
            // A row of KCL does not say who created it; it exists in any case.
            let create = matches!(&write, Write::Lease { change: LeaseChange::Create(_), .. });
            let void = create && layout == Layout::Kcl;
            let expected = if void { Resolution::NotApplied } else { Resolution::Applied };
            assert_eq!(scene.resolve(&write).await, expected, "{write:?}");
        }
    }
}

#[tokio::test]
async fn a_write_that_may_not_have_arrived_is_unknown_and_sent_again_as_it_was() {
    let failed = || RequestFault::error(500, "InternalServerError", "try again");
    for layout in [Layout::Native, Layout::Kcl] {
        for (operation, write) in writes(layout) {
            for mischief in [RequestFault::LoseRequest, failed()] {
                let scene = StoreScenario::new(layout).await;
                scene.wire.next(operation, mischief);
                assert_eq!(scene.write(&write).await, WriteOutcome::Unknown, "{write:?}");
                assert_eq!(scene.resolve(&write).await, Resolution::StillUnknown, "{write:?}");
                assert!(scene.write(&write).await.is_done(), "{write:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_take_whose_row_can_not_be_read_after_it_is_unknown() {
    let scene = StoreScenario::new(Layout::Native).await;
    for _ in 0..3 {
        scene.wire.next("GetItem", RequestFault::LoseReply);
    }
    assert_eq!(scene.write(&take("b", 1)).await, WriteOutcome::Unknown);
    assert_eq!(scene.resolve(&take("b", 1)).await, Resolution::Applied);
}

/// Takes the lease while the read of the row after the take is delayed, so that another write can
/// come first.
async fn take_and_meanwhile(meanwhile: Write) -> WriteOutcome {
    let scene = StoreScenario::new(Layout::Native).await;
    let (here, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    scene.wire.next("GetItem", RequestFault::Hold(Arc::clone(&here), Arc::clone(&go)));
    let other = async {
        here.notified().await;
        // Bypasses the proxy, so that this one is not held.
        let other = DynamoDbStore::native(&scene.server.config(), "leases");
        assert!(other.write(&meanwhile).await.expect("an outcome").is_done());
        go.notify_one();
    };
    let take = take("b", 1);
    let (outcome, ()) = tokio::join!(scene.write(&take), Box::pin(other));
    outcome
}

#[tokio::test]
async fn a_take_that_was_followed_at_once_never_shows_another_owner_as_its_own() {
    let asked = LeaseChange::RequestHandOver { taker: "c".into(), term: 2 };
    let outcome = take_and_meanwhile(Write::lease(&key(0), asked, Nonce(9))).await;
    let hold = outcome.token().expect("still held");
    assert_eq!((hold.owner, hold.term), ("b".into(), 2));
    let taken = LeaseChange::Take { taker: "c".into(), term: 2 };
    let outcome = take_and_meanwhile(Write::lease(&key(0), taken, Nonce(9))).await;
    assert_eq!(outcome, WriteOutcome::Unknown);
}

#[tokio::test]
async fn a_conflict_with_a_write_in_progress_is_tried_again_and_loses_nothing() {
    let scene = StoreScenario::new(Layout::Native).await;
    let conflict = || RequestFault::cancelled("None", "TransactionConflict");
    scene.wire.next("TransactWriteItems", conflict());
    // If both happen, the condition is checked again once the other write is over.
    scene.wire.next(
        "TransactWriteItems",
        RequestFault::cancelled("ConditionalCheckFailed", "TransactionConflict"),
    );
    assert!(scene.write(&take("b", 1)).await.is_done());
    let busy = || RequestFault::error(400, "TransactionConflictException", "in progress");
    scene.wire.next("UpdateItem", busy());
    assert!(scene.write(&beat(0)).await.is_done());
    assert_eq!(scene.wire.left(), 0);

    for _ in 0..50 {
        scene.wire.next("TransactWriteItems", conflict());
    }
    let error = scene.store.write(&take("c", 2)).await.expect_err("it stays busy");
    assert!(matches!(error, StoreError::Busy { .. }) && error.is_retryable(), "{error}");
    assert_eq!(scene.lease().await.owner, Some("b".into()));
}

#[tokio::test]
async fn a_refusal_without_its_row_is_explained_by_reading_it() {
    for layout in [Layout::Native, Layout::Kcl] {
        let scene = StoreScenario::new(layout).await;
        let (operation, refusal) = match layout {
            Layout::Native => {
                ("TransactWriteItems", RequestFault::cancelled("ConditionalCheckFailed", "None"))
            }
            Layout::Kcl => {
                ("UpdateItem", RequestFault::error(400, "ConditionalCheckFailedException", "no"))
            }
        };
        // The row would allow it, so it is sent again.
        scene.wire.next(operation, refusal.clone());
        assert!(scene.write(&take("a", 1)).await.is_done(), "{layout:?}");
        scene.wire.next(operation, refusal);
        let outcome = scene.write(&take("b", 1)).await;
        assert!(outcome.refusal().is_some(), "{layout:?}: {outcome:?}");
    }
}

#[tokio::test]
async fn refusals_of_the_service_are_errors_that_wrote_nothing_and_say_what_to_do() {
    let cases = [
        ("ThrottlingException", "slow down", "throttling", true),
        ("ProvisionedThroughputExceededException", "slow down", "throttling", true),
        (
            "AccessDeniedException",
            "no policy allows it",
            "dynamodb:UpdateItem on table `leases`",
            false,
        ),
        ("UnrecognizedClientException", "bad token", "credentials", false),
        ("ExpiredTokenException", "too old", "credentials", false),
        ("ResourceNotFoundException", "gone", "table `leases` does not exist", false),
        ("ValidationException", "odd", "was rejected", false),
    ];
    for (code, message, said, retryable) in cases {
        let scene = StoreScenario::new(Layout::Native).await;
        scene.wire.next("UpdateItem", RequestFault::error(400, code, message));
        let error = scene.store.write(&beat(0)).await.expect_err(code);
        let text = error.to_string();
        assert!(text.contains(said) && text.contains("dynamodb:leases"), "{code}: {text}");
        assert_eq!(error.is_retryable(), retryable, "{code}");
        assert!(scene.write(&beat(0)).await.is_done(), "{code}: nothing was written");
    }
    let scene = StoreScenario::new(Layout::Native).await;
    scene.wire.next("TransactWriteItems", RequestFault::cancelled("None", "ThrottlingError"));
    let error = scene.store.write(&name("b")).await.expect_err("throttled");
    assert!(matches!(error, StoreError::Throttled { .. }), "{error}");
}

#[tokio::test]
async fn a_call_that_hangs_is_given_up() {
    let scene = StoreScenario::new(Layout::Native).await;
    let store = scene.store.clone().with_call_timeout(Duration::from_millis(200));
    let (here, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    scene.wire.next("UpdateItem", RequestFault::Hold(here, go));
    assert_eq!(store.write(&beat(0)).await.expect("an outcome"), WriteOutcome::Unknown);
    assert_eq!(scene.resolve(&beat(0)).await, Resolution::StillUnknown);
}

#[tokio::test]
async fn facts_of_a_stream_are_marked_in_a_transaction() {
    let scene = StoreScenario::new(Layout::Native).await;
    assert!(scene.write(&note()).await.is_done());
    scene.wire.next("TransactWriteItems", RequestFault::LoseReply);
    assert_eq!(scene.write(&mark()).await, WriteOutcome::Unknown);
    assert_eq!(scene.resolve(&mark()).await, Resolution::Applied);
}

#[tokio::test]
async fn a_store_that_can_not_ask_says_why() {
    let closed = config_for("http://127.0.0.1:1");
    let no_region = closed.to_builder().region(None::<aws_sdk_dynamodb::config::Region>).build();
    let no_credentials = aws_types::SdkConfig::builder()
        .endpoint_url("http://127.0.0.1:1")
        .region(aws_sdk_dynamodb::config::Region::new("us-east-1"))
        .build();
    for (config, said, retryable) in [
        (closed, "cannot reach", true),
        (no_region, "AWS_REGION", false),
        (no_credentials, "AWS_ACCESS_KEY_ID", false),
    ] {
        let store = DynamoDbStore::native(&config, "leases");
        let error = store.prepare().await.expect_err(said);
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(error.is_retryable(), retryable, "{error}");
    }
}

/// Returns the service's reply about continuous backups.
fn backups(recovery: &str) -> RequestFault {
    let body = format!(
        r#"{{"ContinuousBackupsDescription":{{"ContinuousBackupsStatus":"ENABLED",
        "PointInTimeRecoveryDescription":{{"PointInTimeRecoveryStatus":"{recovery}"}}}}}}"#
    );
    RequestFault::Answer(200, body)
}

#[tokio::test]
async fn backups_are_switched_on_once_the_service_allows_it_and_never_again() {
    let server = Server::embedded().await;
    let wire = FaultyProxy::to(server.address()).await;
    let store = DynamoDbStore::native(&wire.config(), "leases").with_point_in_time_recovery();
    let update = "UpdateContinuousBackups";
    let early = || {
        RequestFault::error(
            400,
            "ContinuousBackupsUnavailableException",
            "Backups are being enabled",
        )
    };
    let denied = RequestFault::error(400, "AccessDeniedException", "no policy allows it");
    // A first start that is denied fails, and a later one that is still denied goes on without.
    for step in [("DescribeContinuousBackups", backups("DISABLED")), (update, denied.clone())] {
        wire.next(step.0, step.1);
    }
    let error = store.prepare().await.expect_err("denied");
    assert!(error.to_string().contains("dynamodb:UpdateContinuousBackups"), "{error}");
    wire.next("DescribeContinuousBackups", denied);
    store.prepare().await.expect("it starts");
    assert_eq!(wire.left(), 0);
    // The missing setting is applied later, however long the service takes to allow it.
    for _ in 0..2 {
        wire.next("DescribeContinuousBackups", backups("DISABLED"));
        wire.next(update, early());
    }
    wire.next("DescribeContinuousBackups", backups("DISABLED"));
    wire.next(update, backups("ENABLED"));
    store.prepare().await.expect("it starts");
    assert_eq!(wire.left(), 0);
    // If an operator switches them off after that, they are not switched on again.
    wire.next("DescribeContinuousBackups", backups("DISABLED"));
    store.prepare().await.expect("it starts");
    assert_eq!(wire.left(), 1, "asked for backups that an operator may have switched off");
}

#[tokio::test]
async fn backups_of_a_new_table_of_kcl_are_switched_on_although_a_first_attempt_failed() {
    let server = Server::embedded().await;
    let wire = FaultyProxy::to(server.address()).await;
    let store = DynamoDbStore::kcl(&wire.config(), "leases").with_point_in_time_recovery();
    let update = "UpdateContinuousBackups";
    wire.next("DescribeContinuousBackups", backups("DISABLED"));
    // As often as the SDK sends it.
    for _ in 0..3 {
        wire.next(update, RequestFault::error(500, "InternalServerError", "try again"));
    }
    let error = store.prepare().await.expect_err("no answer");
    assert!(error.is_retryable(), "{error}");
    assert_eq!(wire.left(), 0);
    // An interrupted attempt does not count either.
    let (here, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    wire.next("DescribeContinuousBackups", RequestFault::Hold(here.clone(), go));
    tokio::select! {
        biased;
        _ = store.prepare() => panic!("nothing was answered"),
        () = here.notified() => {}
    }
    wire.next("DescribeContinuousBackups", backups("DISABLED"));
    wire.next(update, backups("ENABLED"));
    store.clone().prepare().await.expect("it starts");
    assert_eq!(wire.left(), 0, "backups were not switched on");
    // Once they are on, an operator may switch them off.
    wire.next("DescribeContinuousBackups", backups("DISABLED"));
    store.prepare().await.expect("it starts");
    assert_eq!(wire.left(), 1);
}

#[tokio::test]
async fn a_table_that_is_active_and_not_yet_known_to_reads_is_waited_for() {
    for layout in [Layout::Native, Layout::Kcl] {
        let server = Server::embedded().await;
        let wire = FaultyProxy::to(server.address()).await;
        let store = match layout {
            Layout::Native => DynamoDbStore::native(&wire.config(), "leases"),
            Layout::Kcl => DynamoDbStore::kcl(&wire.config(), "leases"),
        };
        for _ in 0..2 {
            wire.next(
                "GetItem",
                RequestFault::error(
                    400,
                    "ResourceNotFoundException",
                    "Requested resource not found",
                ),
            );
        }
        store.prepare().await.expect("a table");
        assert_eq!(wire.left(), 0, "{layout:?}");
    }
}

#[tokio::test]
async fn a_global_table_is_refused_unless_one_region_writes() {
    let server = Server::embedded().await;
    let wire = FaultyProxy::to(server.address()).await;
    let key = |name, role| format!(r#"{{"AttributeName":"{name}","KeyType":"{role}"}}"#);
    let schema = format!("{},{}", key("pk", "HASH"), key("sk", "RANGE"));
    let replicas = r#""GlobalTableVersion":"2019.11.21","Replicas":[{"RegionName":"eu-west-1"}]"#;
    for (global, said) in
        [(replicas, "eu-west-1"), (r#""GlobalTableVersion":"2017.11.29""#, "other regions")]
    {
        let table = || {
            let table = format!(
                r#"{{"Table":{{"TableName":"leases","TableStatus":"ACTIVE","KeySchema":[{schema}],{global}}}}}"#
            );
            RequestFault::Answer(200, table)
        };
        let store = DynamoDbStore::native(&wire.config(), "leases");
        wire.next("DescribeTable", table());
        let error = store.prepare().await.expect_err(said).to_string();
        assert!(error.contains(said) && error.contains("?one-region"), "{error}");
        // The real table, for the calls after its description.
        store.prepare().await.expect("a table of one region");
        wire.next("DescribeTable", table());
        store.with_one_writing_region().prepare().await.expect("it was said that it is safe");
        assert_eq!(wire.left(), 0);
    }
}
