//! The cost of one read is independent of the backlog.

use crate::world::RelayFixture;
use anabranch::event::RelayEvent;

const ROWS: i64 = 1_000_000;
const PORTION: u32 = 500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_reads_the_rows_that_it_takes_and_not_the_million_that_wait() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    // The statistics do not include these rows: the plan must not need them.
    session
        .run(&format!(
            "INSERT INTO outbox (partition_key, data) \
             SELECT 'k' || n % 1000, n::text::bytea FROM generate_series(1, {ROWS}) n"
        ))
        .await;
    check_plan(&world, None).await;
    check_plan(&world, Some(ROWS / 2)).await;
    session.run("ANALYZE outbox").await;
    check_plan(&world, None).await;
    check_plan(&world, Some(ROWS / 2)).await;
    check_removal_plan(&world).await;
    session.run("CREATE INDEX outbox_key ON outbox (partition_key, id)").await;
    check_key_plan(&world).await;
    let relay = world.start(world.relay().with_read_limit(PORTION, 1 << 20).with_max_held(2_000));
    relay.until("lag", |e| matches!(e, RelayEvent::Lagging { rows: 900_000.., .. })).await;
    relay.until("rows that were sent", |e| matches!(e, RelayEvent::Sent { .. })).await;
    relay.stop().await.unwrap();
}

/// Checks that no step of the plan yields more rows than one read takes, or discards rows. While
/// the horizon is unchanged no row can be late, so the index of transactions is not read.
async fn check_plan(world: &RelayFixture, cursor: Option<i64>) {
    let (database, table) = (world.database(), &world.table);
    let plan = anabranch_outbox::explain(&database, table, cursor, PORTION).await.unwrap();
    let text = plan.join("\n");
    assert!(!text.contains("Seq Scan"), "{text}");
    assert!(text.contains("Index Scan using outbox_pkey"), "{text}");
    if cursor.is_some() {
        let late: Vec<_> = plan.iter().filter(|line| line.contains("outbox_transaction")).collect();
        let idle = |line: &&String| line.contains("never executed");
        assert!(!late.is_empty() && late.iter().all(idle), "late rows are looked for:\n{text}");
    }
    check_steps(&plan);
}

/// Checks that rows are removed by id, whatever the batch size.
async fn check_removal_plan(world: &RelayFixture) {
    let (database, table) = (world.database(), &world.table);
    let plan = anabranch_outbox::explain(&database, table, None, 20_000).await.unwrap();
    let text = plan.join("\n");
    assert!(text.contains("Delete on outbox") && !text.contains("Hash Join"), "{text}");
    assert!(!text.contains("Merge Join"), "{text}");
}

/// Checks that resuming a key costs only its own rows, if the table has an index on the keys.
async fn check_key_plan(world: &RelayFixture) {
    let (database, table) = (world.database(), &world.table);
    let plan =
        anabranch_outbox::explain_key(&database, table, ("k7", ROWS), PORTION).await.unwrap();
    let text = plan.join("\n");
    assert!(text.contains("Index Scan using outbox_key"), "{text}");
    assert!(text.contains("Index Scan using outbox_pkey"), "the sweep:\n{text}");
    check_steps(&plan);
}

fn check_steps(plan: &[String]) {
    let text = plan.join("\n");
    assert!(!text.contains("Seq Scan"), "{text}");
    for line in plan {
        let rows = line.split("(actual rows=").nth(1).and_then(|rest| rest.split(' ').next());
        let rows: i64 = rows.map_or(0, |rows| rows.parse().unwrap());
        assert!(rows <= i64::from(PORTION), "a step gives {rows} rows:\n{text}");
        let removed = line.split("Rows Removed by Filter: ").nth(1);
        assert!(removed.is_none_or(|rows| rows == "0"), "a step reads too much:\n{text}");
    }
}
