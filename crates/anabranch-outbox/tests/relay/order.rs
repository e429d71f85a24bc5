//! Interleavings in which a naive relay skips a row, or sends an effect before its cause.

use crate::world::{AppSession, RelayFixture};
use anabranch::event::RelayEvent;
use anabranch_outbox::BlockingTransaction;

/// Assigns a transaction id now, as any earlier write of the application would.
async fn begin(session: &mut AppSession) {
    session.run("BEGIN").await;
    session.run("SELECT pg_current_xact_id()").await;
}

fn is_held(event: &RelayEvent) -> bool {
    matches!(event, RelayEvent::WaitingForTransaction { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_commits_late_with_a_lower_id_is_sent() {
    let Some(world) = RelayFixture::new().await else { return };
    let [mut late, mut early] = [world.session().await, world.session().await];
    // The row with the lower id belongs to the later transaction, so the horizon lets the other
    // pass.
    begin(&mut early).await;
    begin(&mut late).await;
    late.insert("a", "late").await;
    early.insert("b", "early").await;
    early.run("COMMIT").await;
    let relay = world.start(world.relay());
    world.until_delivered(1).await;
    assert_eq!(world.delivered().await, ["b early"]);
    late.run("COMMIT").await;
    world.until_delivered(2).await;
    assert_eq!(world.delivered_of("a").await, ["late"]);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_waits_while_an_older_transaction_runs_and_then_goes_without_a_word() {
    let Some(world) = RelayFixture::new().await else { return };
    let [mut old, mut new] = [world.session().await, world.session().await];
    begin(&mut old).await;
    let relay = world.start(world.relay());
    new.insert("a", "new").await;
    relay.until("a row that is held up", is_held).await;
    assert_eq!(world.delivered().await, Vec::<String>::new());
    let status = anabranch_outbox::status(&world.database(), &world.table).await.unwrap();
    assert_eq!((status.waiting_rows, status.held_rows), (1, 1));
    let pid = old.number("SELECT pg_backend_pid()::bigint").await;
    let is_ours = |holder: &BlockingTransaction| holder.pid.map(i64::from) == Some(pid);
    assert!(status.holders.iter().any(is_ours), "{pid}: {:?}", status.holders);
    assert!(status.relay.is_some());
    old.run("COMMIT").await;
    world.until_delivered(1).await;
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_began_first_and_wrote_last_comes_last() {
    let Some(world) = RelayFixture::new().await else { return };
    let [mut first, mut second] = [world.session().await, world.session().await];
    begin(&mut first).await;
    second.insert("a", "cause").await;
    // It sees the other's row, and has the lower transaction id.
    first.insert("a", "effect").await;
    first.run("COMMIT").await;
    let relay = world.start(world.relay());
    world.until_delivered(2).await;
    assert_eq!(world.delivered_of("a").await, ["cause", "effect"]);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_below_the_horizon_waits_for_its_cause_above_it() {
    let Some(world) = RelayFixture::new().await else { return };
    let [mut effect, mut other, mut cause] =
        [world.session().await, world.session().await, world.session().await];
    begin(&mut effect).await;
    begin(&mut other).await;
    cause.insert("a", "cause").await;
    effect.insert("a", "effect").await;
    effect.run("COMMIT").await;
    // The horizon is at `other`: above the effect, below its cause.
    let relay = world.start(world.relay());
    relay.until("a row that is held up", is_held).await;
    assert_eq!(world.delivered().await, Vec::<String>::new());
    other.run("ROLLBACK").await;
    world.until_delivered(2).await;
    assert_eq!(world.delivered_of("a").await, ["cause", "effect"]);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_waits_for_a_cause_that_the_cursor_has_passed() {
    let Some(world) = RelayFixture::new().await else { return };
    let [mut passer, mut effect, mut other, mut cause] = [
        world.session().await,
        world.session().await,
        world.session().await,
        world.session().await,
    ];
    begin(&mut passer).await;
    begin(&mut effect).await;
    begin(&mut other).await;
    begin(&mut cause).await;
    cause.insert("a", "cause").await;
    passer.insert("b", "passer").await;
    passer.run("COMMIT").await;
    let relay = world.start(world.relay());
    // The cursor is now past `passer`, and above the id of `cause`.
    world.until_delivered(1).await;
    cause.run("COMMIT").await;
    effect.insert("a", "effect").await;
    effect.run("COMMIT").await;
    relay.until("a row that is held up", is_held).await;
    assert_eq!(world.delivered().await, ["b passer"]);
    other.run("COMMIT").await;
    world.until_delivered(3).await;
    assert_eq!(world.delivered_of("a").await, ["cause", "effect"]);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_was_drawn_long_before_its_transaction_is_not_skipped() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    let drawn = session.number("SELECT nextval('outbox_id_seq')").await;
    session.insert("a", "first").await;
    let relay = world.start(world.relay());
    world.until_delivered(1).await;
    session
        .run(&format!(
            "INSERT INTO outbox (id, partition_key, data) VALUES ({drawn}, 'b', 'drawn')"
        ))
        .await;
    world.until_delivered(2).await;
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_rolled_back_and_prepared_transactions_and_of_savepoints_go_by_their_fate() {
    let Some(mut world) = RelayFixture::bare() else { return };
    // A transaction that notifies can't be prepared.
    world.table = world.table.with_notify(false);
    anabranch_outbox::init(&world.database(), &world.table, false).await.unwrap();
    let mut session = world.session().await;
    let relay = world.start(world.relay());
    session.run("BEGIN").await;
    session.insert("a", "never").await;
    session.run("ROLLBACK").await;
    session.run("BEGIN").await;
    session.insert("a", "1").await;
    session.run("SAVEPOINT s").await;
    session.insert("a", "never").await;
    session.run("ROLLBACK TO s").await;
    session.insert("a", "2").await;
    session.run("COMMIT").await;
    session.run("BEGIN").await;
    session.insert("a", "3").await;
    session.run("PREPARE TRANSACTION 'p'").await;
    session.insert("a", "4").await;
    relay.until("a row that is held up", is_held).await;
    let status = anabranch_outbox::status(&world.database(), &world.table).await.unwrap();
    let is_ours = |holder: &BlockingTransaction| holder.who.contains("prepared as p");
    assert!(status.holders.iter().any(is_ours), "{:?}", status.holders);
    session.run("COMMIT PREPARED 'p'").await;
    world.until_delivered(4).await;
    world.until_empty().await;
    assert_eq!(world.delivered_of("a").await, ["1", "2", "3", "4"]);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_that_begin_again_are_other_rows() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    let relay = world.start(world.relay());
    session.insert("a", "old").await;
    world.until_empty().await;
    session.run("TRUNCATE outbox RESTART IDENTITY").await;
    session.insert("a", "new").await;
    world.until_empty().await;
    assert_eq!(world.delivered_of("a").await, ["old", "new"]);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_from_a_server_with_higher_transaction_ids_is_sent() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    let relay = world.start(world.relay());
    session
        .run("INSERT INTO outbox (transaction_id, partition_key, data) VALUES ('999999999999', 'a', '1')")
        .await;
    session.insert("a", "2").await;
    world.until_empty().await;
    assert_eq!(world.delivered_of("a").await, ["1", "2"]);
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_rows_from_a_server_with_higher_transaction_ids_than_one_look_takes_are_sent() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    session
        .run(
            "INSERT INTO outbox (transaction_id, partition_key, data) \
             SELECT '999999999999', 'a', n::text::bytea FROM generate_series(1, 9) n",
        )
        .await;
    let relay = world.start(world.relay().with_read_limit(2, 1 << 20));
    world.until_empty().await;
    assert_eq!(world.delivered_of("a").await, ["1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    relay.stop().await.unwrap();
}
