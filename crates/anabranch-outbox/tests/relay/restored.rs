//! Reused ids and restored rows: a truncated table, a restore, a row removed by hand.

use crate::world::{AppSession, RelayFixture};
use anabranch::event::RelayEvent;
use std::time::Duration;

fn is_parked(event: &RelayEvent) -> bool {
    matches!(event, RelayEvent::KeyBlocked { .. })
}

/// Inserts a row that no stream accepts.
async fn insert_bad(session: &mut AppSession, key: &str) {
    session
        .run(&format!(
            "INSERT INTO outbox (partition_key, explicit_hash_key, data) VALUES ('{key}', 'x', '')"
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_goes_on_when_the_row_that_parked_it_was_removed_by_hand() {
    for restart in [false, true] {
        let Some(world) = RelayFixture::new().await else { return };
        let mut session = world.session().await;
        insert_bad(&mut session, "a").await;
        session.insert("a", "behind").await;
        let mut relay = world.start(world.relay());
        relay.until("a parked key", is_parked).await;
        if restart {
            relay.stop().await.unwrap();
            session.run("DELETE FROM outbox WHERE id = 1").await;
            relay = world.start(world.relay());
        } else {
            session.run("DELETE FROM outbox WHERE id = 1").await;
        }
        world.until_empty().await;
        assert_eq!(world.delivered_of("a").await, ["behind"]);
        assert_eq!(session.number("SELECT count(*) FROM outbox_parked").await, 0);
        relay.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_has_the_id_of_a_parked_one_is_neither_stopped_nor_skipped() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    insert_bad(&mut session, "a").await;
    let relay = world.start(world.relay());
    relay.until("a parked key", is_parked).await;
    relay.stop().await.unwrap();
    session.run("TRUNCATE outbox RESTART IDENTITY").await;
    session.insert("a", "new").await;
    let (database, table) = (world.database(), &world.table);
    let status = anabranch_outbox::status(&database, table).await.unwrap();
    assert_eq!((status.waiting_rows, status.parked), (1, vec![]));
    let skipped = anabranch_outbox::skip(&database, table, 1).await.unwrap().unwrap();
    assert!(!skipped.removed, "another row was removed: {skipped:?}");
    let relay = world.start(world.relay());
    world.until_empty().await;
    assert_eq!(world.delivered_of("a").await, ["new"]);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_is_parked_although_a_line_of_another_row_has_its_id() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    let relay = world.start(world.relay());
    session.insert("b", "1").await;
    world.until_empty().await;
    // An entry as a restore of that table brings it.
    session
        .run(
            "INSERT INTO outbox_parked (row_id, partition_key, reason, transaction_id) \
              VALUES (2, 'b', 'old', '3')",
        )
        .await;
    insert_bad(&mut session, "a").await;
    relay.until("a parked key", is_parked).await;
    let status = anabranch_outbox::status(&world.database(), &world.table).await.unwrap();
    let parked: Vec<_> = status.parked.iter().map(|parked| (parked.row, &*parked.key)).collect();
    assert_eq!(parked, [(2, "a")]);
    session.insert("b", "3").await;
    world.until_delivered(2).await;
    let again = |event: &RelayEvent| matches!(event, RelayEvent::KeyResumed { .. });
    assert!(!relay.has_heard(again), "the line was not written at once");
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_restored_behind_the_cursor_are_found_and_told_of() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    session.insert("c", "1").await;
    insert_bad(&mut session, "p").await;
    session.insert("p", "waits").await;
    for _ in 4..=9 {
        session.insert("c", "more").await;
    }
    let relay = world.start(world.relay().with_sweep(Duration::from_millis(50)));
    while session.number("SELECT count(*) FROM outbox").await > 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let is_restored = |event: &RelayEvent| matches!(event, RelayEvent::RowRestored { .. });
    assert!(!relay.has_heard(is_restored));
    // With their original transaction, as a restore brings them: one before and one behind a
    // blocking row.
    for row in [5, 1] {
        session
            .run(&format!(
                "INSERT INTO outbox (id, transaction_id, partition_key, data) \
                 VALUES ({row}, '3', 'a', '{row}')"
            ))
            .await;
    }
    world.until_delivered(9).await;
    relay.until("rows that were restored", is_restored).await;
    let mut came = world.delivered_of("a").await;
    came.sort();
    assert_eq!(came, ["1", "5"]);
    relay.stop().await.unwrap();
}
