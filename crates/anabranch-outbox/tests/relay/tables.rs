//! Tests of `init`, of tables that it did not create, and of problems that prevent relaying.

use crate::world::RelayFixture;
use anabranch_outbox::{ColumnNames, OutboxTable, RelayError};

async fn problems(world: &RelayFixture) -> String {
    match anabranch_outbox::init(&world.database(), &world.table, false).await {
        Err(error @ RelayError::Table { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_may_be_run_again_and_then_does_nothing() {
    let Some(world) = RelayFixture::bare() else { return };
    let (database, table) = (world.database(), &world.table);
    let printed = anabranch_outbox::init(&database, table, true).await.unwrap();
    let mut session = world.session().await;
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    assert_eq!(session.number(tables).await, 0, "printing made something");
    // An operator can run the printed script.
    session.run(&printed.script()).await;
    let again = anabranch_outbox::init(&database, table, false).await.unwrap();
    assert_eq!(again.statements, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_another_making_is_adopted_with_the_rows_that_it_has() {
    let Some(mut world) = RelayFixture::bare() else { return };
    let mut session = world.session().await;
    session
        .run(
            "CREATE SCHEMA billing; \
             CREATE TABLE billing.events (no serial PRIMARY KEY, customer uuid NOT NULL, \
               payload jsonb NOT NULL, name text NOT NULL); \
             INSERT INTO billing.events (customer, payload, name) \
               VALUES ('00000000-0000-0000-0000-000000000001', '{\"n\": 1}', 'first')",
        )
        .await;
    let map = "id=no,partition_key=customer,data=payload,event_id=name";
    let table = OutboxTable::named("billing.events").unwrap();
    world.table = table.with_columns(ColumnNames::parse(map).unwrap());
    let done = anabranch_outbox::init(&world.database(), &world.table, false).await.unwrap();
    assert!(done.statements[0].contains("ADD COLUMN \"transaction_id\""), "{done:?}");
    session
        .run(
            "INSERT INTO billing.events (customer, payload, name) \
             VALUES ('00000000-0000-0000-0000-000000000001', '{\"n\": 2}', 'second')",
        )
        .await;
    let relay = world.start(world.relay());
    world.until_delivered(2).await;
    relay.stop().await.unwrap();
    let key = "00000000-0000-0000-0000-000000000001";
    assert_eq!(world.delivered_of(key).await, ["{\"n\": 1}", "{\"n\": 2}"]);
    let records = world.stage.read_all().await;
    let ids = records.iter().map(|r| anabranch_outbox::Envelope::read(&r.data).unwrap().id);
    assert_eq!(ids.collect::<Vec<_>>(), ["first", "second"]);
    // A row without a transaction could be skipped, so such a row is rejected.
    let null = "INSERT INTO billing.events (customer, payload, name, transaction_id) \
                VALUES ('00000000-0000-0000-0000-000000000001', '{}', 'x', NULL)";
    let refused = sqlx::Executor::execute(&mut session.0, null).await;
    assert!(refused.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_in_the_way_is_told_with_the_way_out() {
    for (sql, words) in [
        (
            "CREATE SEQUENCE s CACHE 20; \
             CREATE TABLE outbox (id bigint PRIMARY KEY DEFAULT nextval('s'), partition_key text, \
               data bytea)",
            &["20 numbers at a time", "ALTER SEQUENCE s CACHE 1"][..],
        ),
        (
            "CREATE TABLE outbox (id uuid PRIMARY KEY, partition_key text, data bytea)",
            &["column id is of type uuid", "no sequence"],
        ),
        (
            "CREATE TABLE outbox (id bigserial PRIMARY KEY, partition_key text)",
            &["column data is missing", "--columns"],
        ),
        (
            "CREATE UNLOGGED TABLE outbox (id bigserial PRIMARY KEY, partition_key text, data bytea)",
            &["SET LOGGED"],
        ),
        (
            "CREATE TABLE outbox (id bigserial, partition_key text, data bytea)",
            &["not unique", "ADD UNIQUE"],
        ),
        (
            "CREATE TABLE outbox (id bigserial PRIMARY KEY, partition_key text, data bytea, \
               transaction_id bigint DEFAULT 0)",
            &["transaction_id is of type bigint"],
        ),
        (
            "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY (INCREMENT 50) \
               PRIMARY KEY, partition_key text, data bytea)",
            &["steps by 50", "allocationSize = 1"],
        ),
        (
            "CREATE TABLE outbox (id bigserial PRIMARY KEY, partition_key text, data bytea, \
               created_at text)",
            &["created_at is of type text", "--columns created_at="],
        ),
    ] {
        let Some(world) = RelayFixture::bare() else { return };
        world.session().await.run(sql).await;
        let told = if sql.contains("transaction_id bigint") {
            // The column can't be altered, so the problem is reported before anything is tried.
            let relay = world.start(world.relay());
            relay.ended().await.unwrap_err().to_string()
        } else {
            problems(&world).await
        };
        for word in words {
            assert!(told.contains(word), "{sql}: {told}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_without_the_rights_is_told_which_it_lacks() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    let name = world.url.rsplit('/').next().unwrap().to_owned();
    session
        .run(&format!(
            "CREATE ROLE relay_{name} LOGIN PASSWORD 'x'; GRANT SELECT ON outbox TO relay_{name}"
        ))
        .await;
    let url = format!("postgres://relay_{name}:x@127.0.0.1:{}/{name}", world.server.port());
    let database = anabranch_outbox::Database::from_url(&url).unwrap();
    let relay = anabranch_outbox::Relay::new(database, world.table.clone(), "orders");
    let told = world.start(relay).ended().await.unwrap_err().to_string();
    for word in
        ["GRANT DELETE ON \"public\".\"outbox\"", "GRANT INSERT ON \"public\".\"outbox_parked\""]
    {
        assert!(told.contains(word), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_parked_keys_of_an_older_version_is_brought_up_to_date() {
    let Some(world) = RelayFixture::new().await else { return };
    world.session().await.run("ALTER TABLE outbox_parked DROP COLUMN transaction_id").await;
    let told = world.start(world.relay()).ended().await.unwrap_err().to_string();
    assert!(told.contains("outbox_parked") && told.contains("relay init"), "{told}");
    let done = anabranch_outbox::init(&world.database(), &world.table, false).await.unwrap();
    assert_eq!(done.statements.len(), 1, "{done:?}");
    world.start(world.relay()).stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_that_no_clock_shows_stops_nothing() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    for (number, time) in ["-infinity", "infinity", "294276-12-31", "0001-01-01"].iter().enumerate()
    {
        session
            .run(&format!(
                "INSERT INTO outbox (partition_key, data, created_at) \
                 VALUES ('a', '{number}', '{time}')"
            ))
            .await;
    }
    let status = anabranch_outbox::status(&world.database(), &world.table).await.unwrap();
    assert_eq!((status.waiting_rows, status.oldest_seconds), (4, None));
    let relay = world.start(world.relay());
    world.until_empty().await;
    assert_eq!(world.delivered_of("a").await, ["0", "1", "2", "3"]);
    relay.stop().await.unwrap();
}
