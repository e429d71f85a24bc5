//! A consumer with a `Deduplicator` sees rows that were sent twice once each.

use crate::stage::STREAM;
use crate::world::RelayFixture;
use anabranch::consumer::{Consumer, Deduplicator, Delivery, HandlerError};
use anabranch::lease::MemoryStore;
use anabranch_outbox::Envelope;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const ROWS: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_remembers_event_ids_handles_each_row_once_and_in_order() {
    let Some(world) = RelayFixture::new().await else { return };
    let mut session = world.session().await;
    session
        .run(&format!(
            "INSERT INTO outbox (partition_key, data) \
             SELECT 'k' || n % 3, n::text::bytea FROM generate_series(1, {ROWS}) n"
        ))
        .await;
    // A relay that ends before it can remove a row, twice.
    session.run("CREATE RULE keep AS ON DELETE TO outbox DO INSTEAD NOTHING").await;
    for times in 1..=2 {
        let relay = world.start(world.relay());
        world.until_delivered(times * ROWS).await;
        drop(relay);
    }
    let sent = world.delivered().await.len();
    let (handled, repeats) =
        (Arc::new(Mutex::new(Vec::new())), Deduplicator::with_capacity(10_000));
    let given = Arc::new(AtomicUsize::new(0));
    let (note, count) = (Arc::clone(&handled), Arc::clone(&given));
    let handle = move |record: Delivery| {
        let (note, repeats) = (Arc::clone(&note), repeats.clone());
        count.fetch_add(1, Ordering::Relaxed);
        async move {
            let envelope = Envelope::read(&record.data)?;
            if repeats.contains(&envelope.id) {
                return Ok(());
            }
            let key = record.partition_key.to_string();
            note.lock().unwrap().push((key, String::from_utf8(envelope.data.to_vec())?));
            repeats.insert(envelope.id);
            Ok::<(), HandlerError>(())
        }
    };
    let consumer = Consumer::new(STREAM, "mailer")
        .with_kinesis(world.stage.api())
        .with_leases(MemoryStore::new())
        .each(handle);
    let (stop, mut task) = (CancellationToken::new(), JoinSet::new());
    task.spawn(consumer.run_until(stop.clone().cancelled_owned()));
    while given.load(Ordering::Relaxed) < sent {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
    task.join_next().await.unwrap().unwrap().unwrap();
    let handled = handled.lock().unwrap();
    assert_eq!(handled.len(), ROWS, "a row was handled twice");
    for key in 0..3 {
        let of = |(k, number): &(String, String)| {
            (*k == format!("k{key}")).then(|| number.parse::<usize>().unwrap())
        };
        let came: Vec<usize> = handled.iter().filter_map(of).collect();
        let wrote: Vec<usize> = (1..=ROWS).filter(|n| n % 3 == key).collect();
        assert_eq!(came, wrote, "key k{key}");
    }
}
