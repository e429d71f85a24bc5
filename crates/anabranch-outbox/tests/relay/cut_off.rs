//! A relay is cut off from its database or its stream, or frozen, while another takes over: order
//! holds, and no late record follows those of the successor.

use crate::child;
use crate::stage::{STREAM, number};
use crate::valve::TcpValve;
use crate::world::{AppSession, RelayFixture};
use anabranch::event::RelayEvent;
use anabranch::producer::Aggregation;
use anabranch::stream::AwsKinesis;
use anabranch_local::Local;
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::Operation;
use anabranch_outbox::{Database, Envelope, Relay, RowFormat};
use std::collections::BTreeSet;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

/// Rows are sent one at a time and slowly: far more than are sent before the takeover.
const ROWS: u64 = 1_000;
const SLOW: FaultEffect = FaultEffect::Delay { ms: 20 };
const TAKEOVER: Duration = Duration::from_secs(2);

/// Sender of a record: the first relay sends envelopes, the second one data alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SentBy {
    First,
    Second,
}

fn is_leading(event: &RelayEvent) -> bool {
    matches!(event, RelayEvent::Leading { .. })
}

fn is_waiting(event: &RelayEvent) -> bool {
    matches!(event, RelayEvent::StandingBy { .. })
}

/// Inserts rows of one key with these numbers.
async fn fill(session: &mut AppSession, numbers: std::ops::RangeInclusive<u64>) {
    let (first, last) = (numbers.start(), numbers.end());
    session
        .run(&format!(
            "INSERT INTO outbox (partition_key, data) \
             SELECT 'a', n::text::bytea FROM generate_series({first}, {last}) n"
        ))
        .await;
}

async fn until_some_are_sent(session: &mut AppSession) {
    let all = i64::try_from(ROWS).unwrap();
    while session.number("SELECT count(*) FROM outbox").await == all {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Checks that every row arrived, in order by first delivery. At most `late` records of the first
/// relay may arrive after the takeover.
async fn check(world: &RelayFixture, rows: u64, late: usize) {
    let records = world.stage.read_all().await;
    let read = |data: &[u8]| match Envelope::read(data) {
        Ok(envelope) => (SentBy::First, number(&envelope.data)),
        Err(_) => (SentBy::Second, number(data)),
    };
    let sent: Vec<(SentBy, u64)> = records.iter().map(|record| read(&record.data)).collect();
    let mut seen = BTreeSet::new();
    let first: Vec<u64> =
        sent.iter().map(|(_, row)| *row).filter(|row| seen.insert(*row)).collect();
    assert_eq!(first, (1..=rows).collect::<Vec<_>>());
    let of = |by: SentBy| sent.iter().filter(move |(sender, _)| *sender == by);
    assert!(of(SentBy::First).count() > 0 && of(SentBy::Second).count() > 0, "nobody took over");
    let takeover = sent.iter().position(|(by, _)| *by == SentBy::Second).unwrap();
    let behind: Vec<_> = sent[takeover..].iter().filter(|(by, _)| *by == SentBy::First).collect();
    assert!(behind.len() <= late, "{} came behind the takeover: {behind:?}", behind.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_lost_its_database_sends_nothing_behind_the_one_that_took_over() {
    let Some(world) = RelayFixture::new().await else { return };
    let port = world.server.port();
    let valve = TcpValve::before(port).await;
    let url = world.url.replace(&format!(":{port}/"), &format!(":{}/", valve.port()));
    let mut session = world.session().await;
    fill(&mut session, 1..=ROWS).await;
    world.stage.fault(Operation::PutRecords, SLOW, 1.0);
    let relay = Relay::new(Database::from_url(&url).unwrap(), world.table.clone(), STREAM)
        .with_poll(Duration::from_millis(100))
        .with_takeover_timeout(TAKEOVER)
        .with_producer(|producer| producer.with_aggregation(Aggregation::Off));
    let first = world.start(relay);
    first.until("the lead", is_leading).await;
    let second = world.start(world.relay().with_format(RowFormat::Data));
    second.until("a relay that waits", is_waiting).await;
    until_some_are_sent(&mut session).await;
    valve.shut();
    second.until("the lead", is_leading).await;
    world.until_empty().await;
    valve.open();
    let is_interrupted = |event: &RelayEvent| matches!(event, RelayEvent::Interrupted { .. });
    first.until("an interruption", is_interrupted).await;
    fill(&mut session, ROWS + 1..=ROWS + 1).await;
    world.until_empty().await;
    check(&world, ROWS + 1, 0).await;
}

/// A relay in its own process, killed when the test ends.
struct Process(Child);

impl Process {
    fn signal(&self, signal: &str) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_stood_still_sends_nothing_behind_the_one_that_took_over() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    fill(&mut session, 1..=ROWS).await;
    world.stage.fault(Operation::PutRecords, SLOW, 1.0);
    let engine = Arc::clone(&world.stage.engine);
    let local = Local::builder().with_engine(engine).start().await.unwrap();
    let first = Process(child::spawn(&world.url, &local, Some(TAKEOVER)));
    until_some_are_sent(&mut session).await;
    let second = world.start(world.relay().with_format(RowFormat::Data));
    second.until("a relay that waits", is_waiting).await;
    first.signal("-STOP");
    second.until("the lead", is_leading).await;
    world.until_empty().await;
    first.signal("-CONT");
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                 AND pid <> pg_backend_pid() AND query LIKE '%pg_try_advisory_lock%'";
    while session.number(waits).await == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    fill(&mut session, ROWS + 1..=ROWS + 1).await;
    world.until_empty().await;
    // At most the request that it was writing when it was stopped is late.
    check(&world, ROWS + 1, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_lost_its_stream_makes_way_for_one_that_has_it() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    let engine = Arc::clone(&world.stage.engine);
    let local = Local::builder().with_engine(engine).start().await.unwrap();
    let port = local.endpoint().rsplit(':').next().unwrap().trim_matches('/').parse().unwrap();
    let valve = TcpValve::before(port).await;
    let through = format!("http://127.0.0.1:{}", valve.port());
    let config = local.sdk_config().into_builder().endpoint_url(through).build();
    let relay = world.relay().with_stall_timeout(Duration::from_millis(500));
    let first = RelayFixture::start_on(relay, AwsKinesis::new(&config));
    first.until("the lead", is_leading).await;
    fill(&mut session, 1..=20).await;
    world.until_empty().await;
    let second = world.start(world.relay().with_format(RowFormat::Data));
    second.until("a relay that waits", is_waiting).await;
    valve.shut();
    fill(&mut session, 21..=40).await;
    second.until("the lead", is_leading).await;
    world.until_empty().await;
    valve.open();
    fill(&mut session, 41..=60).await;
    world.until_empty().await;
    // Records in flight when it lost the stream may still arrive.
    check(&world, 60, 20).await;
}
