//! Several relays: one is active and another takes over when it ends. Includes the state after a
//! stop, an outage or a lost session.

use crate::stage::STREAM;
use crate::world::RelayFixture;
use anabranch::event::RelayEvent;
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::Operation;
use anabranch_outbox::{AfterSend, Envelope};
use std::collections::BTreeSet;

/// Ends every other session of the database.
const END_OTHERS: &str = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity \
                          WHERE datname = current_database() AND pid <> pg_backend_pid()";

fn is_leading(event: &RelayEvent) -> bool {
    matches!(event, RelayEvent::Leading { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_relay_works_and_another_takes_over_when_it_goes() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    let first = world.start(world.relay());
    first.until("the lead", is_leading).await;
    let second = world.start(world.relay());
    second.until("a relay that waits", |e| matches!(e, RelayEvent::StandingBy { .. })).await;
    session.insert("a", "1").await;
    world.until_empty().await;
    assert!(!second.has_heard(is_leading));
    // A crash: no shutdown, no drain.
    drop(first);
    session.insert("a", "2").await;
    second.until("the lead", is_leading).await;
    world.until_empty().await;
    // The server ended this relay's session: it returns, or a third one takes over.
    let third = world.start(world.relay());
    session.run(END_OTHERS).await;
    session.insert("a", "3").await;
    world.until_empty().await;
    assert_eq!(world.delivered_of("a").await, ["1", "2", "3"]);
    second.stop().await.unwrap();
    third.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_leaves_no_row_that_was_sent() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    session
        .run("INSERT INTO outbox (partition_key, data) SELECT 'k' || n % 7, n::text::bytea FROM generate_series(1, 5000) n")
        .await;
    let relay = world.start(world.relay().with_read_limit(100, 1 << 20));
    world.until_delivered(500).await;
    relay.stop().await.unwrap();
    let rest = session.number("SELECT count(*) FROM outbox").await;
    let sent = world.delivered().await.len();
    assert_eq!(sent + usize::try_from(rest).unwrap(), 5_000, "a row was sent and left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_after_a_put_repeats_rows_with_the_same_event_ids_and_no_row_is_lost() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    session
        .run("INSERT INTO outbox (partition_key, data) SELECT 'k' || n % 7, n::text::bytea FROM generate_series(1, 300) n")
        .await;
    // No row can be removed while another session locks them.
    session.run("BEGIN").await;
    session.run("SELECT FROM outbox FOR UPDATE").await;
    let relay = world.start(world.relay());
    world.until_delivered(300).await;
    drop(relay);
    // The last statement of the dropped relay must not outlive it.
    session.run(END_OTHERS).await;
    session.run("COMMIT").await;
    let relay = world.start(world.relay());
    world.until_empty().await;
    relay.stop().await.unwrap();
    let records = world.stage.read_all().await;
    let mut events = BTreeSet::new();
    let repeats = anabranch::consumer::Deduplicator::with_capacity(1_000);
    let mut handled = Vec::new();
    for record in &records {
        let envelope = Envelope::read(&record.data).unwrap();
        events.insert((envelope.id.clone(), envelope.data.clone()));
        if !repeats.contains(&envelope.id) {
            handled.push(envelope.data.clone());
            repeats.insert(envelope.id);
        }
    }
    assert!(records.len() > 300, "nothing was repeated");
    assert_eq!((events.len(), handled.len()), (300, 300));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_somebody_holds_are_removed_later_and_not_sent_again() {
    let Some(world) = RelayFixture::new().await else { return };
    let [mut session, mut other] = [world.session().await, world.session().await];
    let drawn = other.number("SELECT nextval('outbox_id_seq')").await;
    for number in 0..20 {
        session.insert("a", &number.to_string()).await;
    }
    session.run("BEGIN").await;
    session.run("SELECT FROM outbox FOR UPDATE").await;
    let relay = world.start(world.relay());
    world.until_delivered(20).await;
    // A late row moves the cursor back before all of them.
    let late =
        format!("INSERT INTO outbox (id, partition_key, data) VALUES ({drawn}, 'b', 'late')");
    other.run(&late).await;
    // Longer than the relay waits for a lock.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    session.run("COMMIT").await;
    world.until_empty().await;
    assert!(!relay.has_heard(|event| matches!(event, RelayEvent::Interrupted { .. })));
    assert_eq!(world.delivered().await.len(), 21);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_on_their_way_are_not_sent_again_when_the_cursor_goes_back() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    let drawn = session.number("SELECT nextval('outbox_id_seq')").await;
    for number in 0..20 {
        session.insert("a", &number.to_string()).await;
    }
    world.stage.fault(Operation::PutRecords, FaultEffect::Throttle, 1.0);
    let relay = world.start(world.relay());
    // The producer has them, so the cursor is past them.
    while world.stage.engine.faults().list().iter().all(|rule| rule.struck == 0) {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    session
        .run(&format!("INSERT INTO outbox (id, partition_key, data) VALUES ({drawn}, 'b', 'late')"))
        .await;
    // The row lies behind the cursor, so it counts once the relay has moved back to it.
    relay.until("lag", |event| matches!(event, RelayEvent::Lagging { rows: 21, .. })).await;
    world.stage.engine.faults().clear();
    world.until_empty().await;
    assert_eq!(world.delivered().await.len(), 21);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_stream_takes_nothing_a_relay_holds_no_more_than_its_bound() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    world.stage.fault(Operation::PutRecords, FaultEffect::Throttle, 1.0);
    session
        .run("INSERT INTO outbox (partition_key, data) SELECT 'k' || n % 7, n::text::bytea FROM generate_series(1, 3000) n")
        .await;
    let relay = world.start(world.relay().with_max_held(200).with_read_limit(50, 1 << 20));
    relay.until("lag", |event| matches!(event, RelayEvent::Lagging { rows: 3_000, .. })).await;
    session.insert("k1", "3001").await;
    relay.until("more lag", |event| matches!(event, RelayEvent::Lagging { rows: 3_001, .. })).await;
    assert_eq!(session.number("SELECT count(*) FROM outbox").await, 3_001);
    world.stage.engine.faults().clear();
    world.until_empty().await;
    assert_eq!(world.delivered().await.len(), 3_001);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_goes_and_comes_back_gets_every_row_that_was_not_sent() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    let relay = world.start(world.relay());
    session.insert("a", "1").await;
    world.until_empty().await;
    world.stage.delete();
    session.insert("a", "2").await;
    session.insert("b", "3").await;
    relay.until("an interruption", |e| matches!(e, RelayEvent::Interrupted { .. })).await;
    assert_eq!(session.number("SELECT count(*) FROM outbox_parked").await, 0);
    world.stage.create(1, None);
    world.until_empty().await;
    assert_eq!(world.delivered().await, ["a 2", "b 3"]);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_kept_are_marked_and_not_sent_again() {
    let Some(mut world) = RelayFixture::bare() else { return };
    world.table = world.table.with_after_send(AfterSend::Mark);
    anabranch_outbox::init(&world.database(), &world.table, false).await.unwrap();
    let mut session = world.session().await;
    for number in 1..=3 {
        session.insert("a", &number.to_string()).await;
    }
    for _ in 0..2 {
        let relay = world.start(world.relay());
        while session.number("SELECT count(*) FROM outbox WHERE sent_at IS NULL").await > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        relay.stop().await.unwrap();
    }
    assert_eq!(world.delivered_of("a").await, ["1", "2", "3"]);
    assert_eq!(session.number("SELECT count(*) FROM outbox").await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_at_the_start_is_told_by_name() {
    let Some(world) = RelayFixture::new().await else { return };
    let missing = anabranch_outbox::Relay::new(world.database(), world.table.clone(), "nowhere");
    let error = world.start(missing).ended().await.unwrap_err().to_string();
    assert!(error.contains("nowhere"), "{error}");
    let table = anabranch_outbox::OutboxTable::named("nothing").unwrap();
    let missing = anabranch_outbox::Relay::new(world.database(), table, STREAM);
    let error = world.start(missing).ended().await.unwrap_err().to_string();
    assert!(error.contains("public.nothing") && error.contains("relay init"), "{error}");
}
