//! A stream refuses the relay for a while: rows wait in the table, and no key is blocked.

use crate::world::{AppSession, RelayFixture};
use anabranch::event::RelayEvent;
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::Operation;
use anabranch_outbox::Relay;
use std::time::Duration;

const KEYS: u32 = 5;
const ROWS: u32 = 40;

fn patient(relay: Relay) -> Relay {
    let wait = Duration::from_millis(20)..=Duration::from_millis(200);
    relay.with_producer(|producer| producer.with_linger(Duration::ZERO).with_refusal_backoff(wait))
}

/// Inserts numbered rows of several keys.
async fn fill(session: &mut AppSession) {
    session
        .run(&format!(
            "INSERT INTO outbox (partition_key, data) \
             SELECT 'k' || n % {KEYS}, n::text::bytea FROM generate_series(1, {ROWS}) n"
        ))
        .await;
}

async fn check_all_came_once_in_order(world: &RelayFixture) {
    for key in 0..KEYS {
        let numbers = (1..=ROWS).filter(|number| number % KEYS == key);
        let expected: Vec<String> = numbers.map(|number| number.to_string()).collect();
        assert_eq!(world.delivered_of(&format!("k{key}")).await, expected, "k{key}");
    }
}

fn is_interruption(event: &RelayEvent) -> bool {
    matches!(event, RelayEvent::Interrupted { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_wait_in_the_table_while_the_relay_is_refused_and_go_on_by_themselves() {
    for (effect, cause) in [
        (FaultEffect::Deny, "AccessDeniedException"),
        (FaultEffect::DisableKey, "KMSDisabledException"),
        (FaultEffect::UnknownClient, "UnrecognizedClientException"),
        (FaultEffect::ExpireToken, "ExpiredTokenException"),
    ] {
        let Some(world) = RelayFixture::new().await else { return };
        let mut session = world.session().await;
        let rule = world.stage.fault(Operation::PutRecords, effect, 1.0);
        fill(&mut session).await;
        let relay = world.start(patient(world.relay()));
        let why = relay.until_paused().await;
        assert!(why.contains(cause), "{why}");
        tokio::time::sleep(Duration::from_millis(300)).await;
        let rows = session.number("SELECT count(*) FROM outbox").await;
        let parked = session.number("SELECT count(*) FROM outbox_parked").await;
        assert_eq!((rows, parked), (i64::from(ROWS), 0), "{effect:?}");
        assert!(!relay.has_heard(is_interruption), "{effect:?}: it only waits");
        world.stage.engine.faults().remove(rule);
        world.until_empty().await;
        check_all_came_once_in_order(&world).await;
        assert!(!relay.has_heard(is_interruption), "{effect:?}");
        relay.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_refused_for_long_makes_way_and_says_why() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    let rule = world.stage.fault(Operation::PutRecords, FaultEffect::Deny, 1.0);
    fill(&mut session).await;
    let relay = patient(world.relay()).with_stall_timeout(Duration::from_millis(300));
    let relay = world.start(relay);
    let named = |event: &RelayEvent| {
        matches!(event, RelayEvent::Interrupted { error, .. }
            if error.contains("accepted no row") && error.contains("AccessDeniedException"))
    };
    relay.until("an interruption that names the refusal", named).await;
    assert_eq!(session.number("SELECT count(*) FROM outbox_parked").await, 0);
    world.stage.engine.faults().remove(rule);
    world.until_empty().await;
    check_all_came_once_in_order(&world).await;
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_stopped_while_it_is_refused_leaves_its_rows_and_ends_well() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    world.stage.fault(Operation::PutRecords, FaultEffect::Deny, 1.0);
    fill(&mut session).await;
    // No probe is in flight at the stop; the outcome of its rows would be unknown.
    let wait = Duration::from_mins(1)..=Duration::from_mins(1);
    let relay = world.relay().with_producer(|producer| producer.with_refusal_backoff(wait));
    let relay = world.start(relay.with_grace_period(Duration::from_millis(200)));
    relay.until_paused().await;
    relay.stop().await.unwrap();
    let rows = session.number("SELECT count(*) FROM outbox").await;
    let parked = session.number("SELECT count(*) FROM outbox_parked").await;
    assert_eq!((rows, parked), (i64::from(ROWS), 0));
}
