//! A row that can never be sent blocks its key, and nothing else.

use crate::world::{AppSession, RelayFixture};
use anabranch::event::RelayEvent;
use anabranch_outbox::{RelayError, RowFormat};

/// A row that no stream accepts.
enum UnsendableRow {
    TooLarge,
    DataHuge,
    HeadersHuge,
    KeyTooLong,
    KeyEmpty,
    HashKey,
}

impl UnsendableRow {
    async fn insert(&self, session: &mut AppSession) -> String {
        let long = "x".repeat(5_000);
        let huge = "repeat('x', 11000000)";
        let (key, hash, data, headers) = match self {
            Self::TooLarge => ("a", "NULL", "repeat('x', 2000000)", "NULL"),
            Self::DataHuge => ("a", "NULL", huge, "NULL"),
            Self::HeadersHuge => ("a", "NULL", "'x'", huge),
            Self::KeyTooLong => (long.as_str(), "NULL", "'x'", "NULL"),
            Self::KeyEmpty => ("", "NULL", "'x'", "NULL"),
            Self::HashKey => ("a", "'12x'", "'x'", "NULL"),
        };
        session
            .run(&format!(
                "INSERT INTO outbox (partition_key, explicit_hash_key, data, headers) \
                 VALUES ('{key}', {hash}, convert_to({data}, 'UTF8'), to_jsonb({headers}::text))"
            ))
            .await;
        key.to_owned()
    }
}

fn is_parked(event: &RelayEvent) -> bool {
    matches!(event, RelayEvent::KeyBlocked { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_can_never_be_sent_parks_its_key_and_the_others_go_on() {
    for (bad, word) in [
        (UnsendableRow::TooLarge, "bytes"),
        (UnsendableRow::DataHuge, "no stream accepts"),
        (UnsendableRow::HeadersHuge, "no stream accepts"),
        (UnsendableRow::KeyTooLong, "characters"),
        (UnsendableRow::KeyEmpty, "empty"),
        (UnsendableRow::HashKey, "12x"),
    ] {
        let Some(world) = RelayFixture::new().await else { return };
        let mut session = world.session().await;
        let key = bad.insert(&mut session).await;
        session.insert(&key, "behind").await;
        session.insert("b", "other").await;
        let relay = world.start(world.relay());
        relay.until("a parked key", is_parked).await;
        world.until_delivered(1).await;
        // Later rows wait too, even for a relay that knows the blocked key only from the table.
        relay.stop().await.unwrap();
        let relay = world.start(world.relay());
        session.insert(&key, "last").await;
        session.insert("c", "other").await;
        world.until_delivered(2).await;
        assert_eq!(world.delivered_of(&key).await, Vec::<String>::new());

        let status = anabranch_outbox::status(&world.database(), &world.table).await.unwrap();
        assert_eq!(status.parked.len(), 1);
        let parked = &status.parked[0];
        assert_eq!((parked.row, parked.key.as_str(), parked.waiting_rows), (1, key.as_str(), 3));
        assert!(parked.reason.contains(word), "{}", parked.reason);
        relay.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_skipped_row_is_gone_and_its_key_goes_on_behind_it() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    session.insert("a", "1").await;
    UnsendableRow::TooLarge.insert(&mut session).await;
    session.insert("a", "3").await;
    session.insert("b", "other").await;
    let relay = world.start(world.relay());
    relay.until("a parked key", is_parked).await;
    world.until_delivered(2).await;
    let (database, table) = (world.database(), &world.table);
    assert_eq!(anabranch_outbox::skip(&database, table, 3).await.unwrap(), None);
    let skipped = anabranch_outbox::skip(&database, table, 2).await.unwrap().unwrap();
    assert_eq!(skipped.key, "a");
    session.insert("a", "4").await;
    world.until_empty().await;
    assert_eq!(world.delivered_of("a").await, ["1", "3", "4"]);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_retried_goes_on_with_the_row_that_stopped_it() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    UnsendableRow::HashKey.insert(&mut session).await;
    session.insert("a", "2").await;
    let relay = world.start(world.relay());
    relay.until("a parked key", is_parked).await;
    let (database, table) = (world.database(), &world.table);
    assert_eq!(anabranch_outbox::retry(&database, table, "b").await.unwrap(), None);
    // The key is blocked again while the row is not repaired.
    assert!(anabranch_outbox::retry(&database, table, "a").await.unwrap().is_some());
    relay.until("a key that goes on", |event| matches!(event, RelayEvent::KeyResumed { .. })).await;
    let parked = "SELECT count(*) FROM outbox_parked";
    while session.number(parked).await == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    session.run("UPDATE outbox SET explicit_hash_key = NULL WHERE id = 1").await;
    assert!(anabranch_outbox::retry(&database, table, "a").await.unwrap().is_some());
    world.until_empty().await;
    assert_eq!(world.delivered_of("a").await, ["x", "2"]);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_parked_keys_stop_the_reading_until_one_is_freed() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    UnsendableRow::HashKey.insert(&mut session).await;
    UnsendableRow::KeyEmpty.insert(&mut session).await;
    let relay = world.start(world.relay().with_max_blocked_keys(2).with_read_limit(1, 1));
    relay.until("a parked key", is_parked).await;
    while session.number("SELECT count(*) FROM outbox_parked").await < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    session.insert("b", "other").await;
    relay
        .until("lag", |event| matches!(event, RelayEvent::Lagging { rows: 1, blocked_keys: 2, .. }))
        .await;
    assert_eq!(world.delivered().await, Vec::<String>::new());
    anabranch_outbox::skip(&world.database(), &world.table, 1).await.unwrap().unwrap();
    world.until_delivered(1).await;
    relay.stop().await.unwrap();
}

/// Checks the state with key `a` blocked at row 3: the rows of `before` among its rows 1 and 2 are
/// sent nevertheless, and all rows once row 3 is skipped.
async fn check_rows_before(world: &RelayFixture, before: &[&str]) {
    let mut session = world.session().await;
    session.insert("a", "behind").await;
    session.insert("b", "other").await;
    world.until_delivered(before.len() + 1).await;
    assert_eq!(world.delivered_of("a").await, before);
    let skipped = anabranch_outbox::skip(&world.database(), &world.table, 3).await.unwrap();
    assert_eq!(skipped.unwrap().key, "a");
    session.insert("a", "last").await;
    world.until_empty().await;
    assert_eq!(world.delivered_of("a").await, ["1", "2", "behind", "last"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_before_the_one_that_parks_their_key_are_sent() {
    // With an entry in `outbox_parked`, a previous relay left it and ended with the first two rows
    // in flight.
    for parked in [false, true] {
        let Some(world) = RelayFixture::new().await else { return };
        let mut session = world.session().await;
        session.insert("a", "1").await;
        session.insert("a", "2").await;
        UnsendableRow::HashKey.insert(&mut session).await;
        if parked {
            park(&mut session, 3).await;
        }
        let relay = world.start(world.relay());
        if !parked {
            relay.until("a parked key", is_parked).await;
        }
        check_rows_before(&world, &["1", "2"]).await;
        relay.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_come_late_before_the_one_that_parked_their_key_are_not_skipped() {
    // A bad hash key never reaches the producer. A record that the stream refuses stops the
    // producer's key.
    for (bad, before) in [(UnsendableRow::HashKey, &["1", "2"][..]), (UnsendableRow::TooLarge, &[])]
    {
        let Some(world) = RelayFixture::new().await else { return };
        let [mut early, mut late] = [world.session().await, world.session().await];
        early.run("BEGIN; SELECT pg_current_xact_id()").await;
        late.run("BEGIN").await;
        late.insert("a", "1").await;
        late.insert("a", "2").await;
        bad.insert(&mut early).await;
        early.run("COMMIT").await;
        let relay = world.relay().with_producer(|producer| producer.with_record_max_bytes(4 << 20));
        let relay = world.start(relay);
        relay.until("a parked key", is_parked).await;
        late.run("COMMIT").await;
        check_rows_before(&world, before).await;
        relay.stop().await.unwrap();
    }
}

/// Blocks key `a` at a row, as a relay does.
async fn park(session: &mut AppSession, row: i64) {
    let sql = "INSERT INTO outbox_parked (row_id, partition_key, reason) VALUES";
    session.run(&format!("{sql} ({row}, 'a', 'bad')")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_with_two_bad_rows_goes_on_from_each_in_turn() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    session.insert("a", "1").await;
    UnsendableRow::HashKey.insert(&mut session).await;
    session.insert("a", "3").await;
    UnsendableRow::HashKey.insert(&mut session).await;
    session.insert("a", "5").await;
    // Both are blocking rows, as when the first of them came late.
    park(&mut session, 2).await;
    park(&mut session, 4).await;
    let relay = world.start(world.relay());
    let (database, table) = (world.database(), &world.table);
    for (row, sent) in [(2, 1), (4, 2)] {
        world.until_delivered(sent).await;
        anabranch_outbox::skip(&database, table, row).await.unwrap().unwrap();
    }
    world.until_empty().await;
    assert_eq!(world.delivered_of("a").await, ["1", "3", "5"]);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_goes_on_with_many_rows_keeps_its_order_while_more_come() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    UnsendableRow::HashKey.insert(&mut session).await;
    for number in 2..=100 {
        session.insert("a", &number.to_string()).await;
    }
    let relay = world.start(world.relay().with_read_limit(7, 1 << 20).with_max_held(20));
    relay.until("a parked key", is_parked).await;
    session.insert("b", "other").await;
    world.until_delivered(1).await;
    anabranch_outbox::skip(&world.database(), &world.table, 1).await.unwrap().unwrap();
    for number in 102..=200 {
        session.insert("a", &number.to_string()).await;
    }
    world.until_empty().await;
    let expected: Vec<String> =
        (2..=100).chain(102..=200).map(|number: i32| number.to_string()).collect();
    assert_eq!(world.delivered_of("a").await, expected);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_keys_that_are_retried_go_on() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    let (database, table) = (world.database(), &world.table);
    assert_eq!(anabranch_outbox::retry_all(&database, table).await.unwrap(), None);
    UnsendableRow::HashKey.insert(&mut session).await;
    UnsendableRow::KeyEmpty.insert(&mut session).await;
    session.insert("a", "3").await;
    let relay = world.start(world.relay());
    while session.number("SELECT count(*) FROM outbox_parked").await < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    session.run("UPDATE outbox SET explicit_hash_key = NULL").await;
    session.run("UPDATE outbox SET partition_key = 'b' WHERE id = 2").await;
    let retried = anabranch_outbox::retry_all(&database, table).await.unwrap().unwrap();
    assert_eq!(retried.rows, [1, 2]);
    world.until_empty().await;
    assert_eq!(world.delivered_of("a").await, ["x", "3"]);
    assert_eq!(world.delivered_of("b").await, ["x"]);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_are_not_sent_park_nothing() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    UnsendableRow::HeadersHuge.insert(&mut session).await;
    let relay = world.start(world.relay().with_format(RowFormat::Data));
    world.until_empty().await;
    assert_eq!(world.stage.read_all().await.len(), 1);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_wait_are_counted_for_each_parked_key() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    // A row without a key is treated as one with an empty key.
    session.run("ALTER TABLE outbox ALTER partition_key DROP NOT NULL").await;
    session.run("INSERT INTO outbox (partition_key, data) VALUES (NULL, '1')").await;
    UnsendableRow::KeyEmpty.insert(&mut session).await;
    UnsendableRow::HashKey.insert(&mut session).await;
    let relay = world.start(world.relay());
    while session.number("SELECT count(*) FROM outbox_parked").await < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let status = anabranch_outbox::status(&world.database(), &world.table).await.unwrap();
    let parked = status.parked.iter().map(|key| (key.row, key.key.as_str(), key.waiting_rows));
    assert_eq!(parked.collect::<Vec<_>>(), [(1, "", 2), (3, "a", 1)]);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_that_are_asked_for_suffice_to_park_a_key() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    let name = world.url.rsplit('/').next().unwrap().to_owned();
    session
        .run(&format!(
            "CREATE ROLE parks_{name} LOGIN PASSWORD 'x'; \
             GRANT SELECT, DELETE ON outbox TO parks_{name}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_parked TO parks_{name}"
        ))
        .await;
    UnsendableRow::HashKey.insert(&mut session).await;
    session.insert("b", "other").await;
    let url = format!("postgres://parks_{name}:x@127.0.0.1:{}/{name}", world.server.port());
    let database = anabranch_outbox::Database::from_url(&url).unwrap();
    let relay = anabranch_outbox::Relay::new(database, world.table.clone(), "orders");
    let relay = world.start(relay);
    relay.until("a parked key", is_parked).await;
    world.until_delivered(1).await;
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_the_database_will_not_remove_are_sent_once() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    session.run("CREATE TABLE notes (event bigint REFERENCES outbox)").await;
    session.insert("a", "1").await;
    session.run("INSERT INTO notes VALUES (1)").await;
    let relay = world.start(world.relay());
    relay.until("rows that stay", |event| matches!(event, RelayEvent::RemovalRefused { .. })).await;
    session.insert("a", "2").await;
    world.until_delivered(2).await;
    assert_eq!(world.delivered_of("a").await, ["1", "2"]);
    session.drop_notes().await;
    world.until_empty().await;
    relay.stop().await.unwrap();
    assert_eq!(world.delivered_of("a").await, ["1", "2"]);
}

/// Inserts rows 1 to 300 of a few keys, and references that prevent the removal of `kept`.
async fn with_kept(session: &mut AppSession, kept: &[i64]) {
    session.run("CREATE TABLE notes (event bigint REFERENCES outbox)").await;
    session
        .run(
            "INSERT INTO outbox (partition_key, data) \
             SELECT 'k' || n % 7, n::text::bytea FROM generate_series(1, 300) n",
        )
        .await;
    for row in kept {
        session.run(&format!("INSERT INTO notes VALUES ({row})")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_the_database_will_not_remove_are_named_and_stop_no_others() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    with_kept(&mut session, &[17, 150]).await;
    // Far below the number of rows: rows failing with their batch would soon fill the limit.
    let relay = world.start(world.relay().with_max_held(20));
    for name in [17, 150] {
        let is_named = |event: &RelayEvent| matches!(event, RelayEvent::RemovalRefused { row, .. } if *row == name);
        relay.until("the row's name", is_named).await;
    }
    while session.number("SELECT count(*) FROM outbox").await > 2 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(!relay.has_heard(
        |event| matches!(event, RelayEvent::RemovalRefused { row, .. } if ![17, 150].contains(row))
    ));
    session.drop_notes().await;
    world.until_empty().await;
    relay.stop().await.unwrap();
    assert_eq!(world.delivered().await.len(), 300, "each row was sent once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_that_leaves_sent_rows_in_the_table_says_so() {
    let Some(world) = RelayFixture::new().await else { return };
    let [mut session, mut holder] = [world.session().await, world.session().await];
    with_kept(&mut session, &[17]).await;
    holder.run("BEGIN").await;
    holder.run("SELECT FROM outbox WHERE id = 40 FOR UPDATE").await;
    let relay = world.start(world.relay());
    world.until_delivered(300).await;
    let error = relay.stop().await.unwrap_err();
    let is_it = matches!(&error, RelayError::Left { rows: 2, .. });
    assert!(is_it && error.to_string().contains("sends them again"), "{error:?}");
    assert_eq!(session.number("SELECT count(*) FROM outbox").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_stayed_have_one_more_chance_at_a_stop() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    with_kept(&mut session, &[17]).await;
    let relay = world.start(world.relay());
    relay.until("the row's name", |event| matches!(event, RelayEvent::RemovalRefused { .. })).await;
    while session.number("SELECT count(*) FROM outbox").await > 1 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    session.drop_notes().await;
    relay.stop().await.unwrap();
    assert_eq!(session.number("SELECT count(*) FROM outbox").await, 0);
}
