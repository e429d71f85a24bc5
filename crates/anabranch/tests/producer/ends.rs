//! Ends: room, flush, close, drop, and threads.

use crate::stage::{STREAM, Stage};
use anabranch::event::{Event, Events, ProducerEvent};
use anabranch::producer::{Outcome, Producer, PutError, SyncProducer, TryPutError, Why};
use anabranch_local::fault::Effect;
use anabranch_local::op::Operation;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[tokio::test]
async fn a_full_buffer_makes_puts_wait_and_tries_fail() {
    let stage = Stage::new(1);
    let stuck = stage.fault(Operation::PutRecords, Effect::InternalError, 1.0);
    let producer = Producer::new(STREAM)
        .with_buffer_bytes(64 << 10)
        .with_backoff(Duration::from_millis(1)..=Duration::from_millis(5))
        .start(stage.api())
        .await
        .unwrap();
    let mut tickets = Vec::new();
    let full = loop {
        match producer.try_put("k", vec![b'1'; 1_000]) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(full, TryPutError::Full(record) if record == anabranch::producer::NewRecord::new("k", vec![b'1'; 1_000]))
    );
    assert!(tickets.len() < 66, "{} records of a kilobyte in 64 KiB", tickets.len());
    let waiting = producer.put("k", vec![b'2'; 1_000]);
    let waiting = tokio::time::timeout(Duration::from_millis(100), waiting).await;
    assert!(waiting.is_err(), "a put waits for room");
    stage.engine.faults().remove(stuck);
    assert!(producer.put("k", "3").await.unwrap().await.is_placed());
    for ticket in tickets {
        assert!(ticket.await.is_placed());
    }
}

#[tokio::test]
async fn closing_accounts_for_every_record() {
    let stage = Stage::new(2);
    let producer = Producer::new(STREAM)
        .with_backoff(Duration::from_millis(5)..=Duration::from_millis(10))
        .start(stage.api())
        .await
        .unwrap();
    let placed = producer.put("a", "1").await.unwrap();
    producer.flush().await;
    assert!(placed.try_outcome().is_some_and(|outcome| outcome.is_placed()), "flush waits");
    // From here on nothing is answered, though half of it arrives.
    stage.fault(Operation::PutRecords, Effect::DropReply, 1.0);
    let lost = producer.put("a", "2").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let queued = producer.put("a", "3").await.unwrap();
    let account = producer.close(Duration::from_millis(100)).await;
    assert_eq!((account.placed, account.rejected, account.unknown), (1, 1, 1));
    assert!(matches!(lost.await, Outcome::Unknown { attempts } if attempts.count() > 0));
    assert!(matches!(queued.await, Outcome::Rejected { why: Why::Closed, .. }));
    assert_eq!(producer.put("a", "4").await.unwrap_err(), PutError::Closed);
    assert_eq!(producer.close(Duration::ZERO).await, account, "a second close says the same");
    producer.flush().await;
}

#[tokio::test]
async fn a_throttle_during_close_loses_nothing() {
    let stage = Stage::new(2);
    stage.fault(Operation::PutRecords, Effect::ThrottleEntries, 0.5);
    let producer = Producer::new(STREAM)
        .with_backoff(Duration::from_millis(1)..=Duration::from_millis(10))
        .start(stage.api())
        .await
        .unwrap();
    let mut tickets = Vec::new();
    for number in 0..500 {
        tickets.push(producer.put(format!("k{number}"), "x").await.unwrap());
    }
    let account = producer.close(Duration::from_secs(30)).await;
    assert_eq!((account.placed, account.rejected, account.unknown), (500, 0, 0));
    for ticket in tickets {
        assert!(ticket.await.is_placed());
    }
}

#[tokio::test]
async fn dropping_without_close_is_told_and_tickets_resolve() {
    let stage = Stage::new(1);
    stage.fault(Operation::PutRecords, Effect::InternalError, 1.0);
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let producer = Producer::new(STREAM)
        .with_events(Events::to(move |event| {
            if let Event::Producer(ProducerEvent::Abandoned { records, .. }) = event {
                listener.lock().unwrap().push(*records);
            }
        }))
        .start(stage.api())
        .await
        .unwrap();
    let tickets = [producer.put("a", "1").await.unwrap(), producer.put("b", "2").await.unwrap()];
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(producer);
    for ticket in tickets {
        assert!(!ticket.await.is_placed());
    }
    assert_eq!(*told.lock().unwrap(), [2]);
}

#[test]
fn threads_put_and_wait_without_a_runtime() {
    let stage = Stage::new(2);
    let producer = SyncProducer::start(Producer::new(STREAM), stage.api()).unwrap();
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let producer = producer.clone();
            std::thread::spawn(move || {
                let put = |number: u32| producer.put(format!("t{thread}"), format!("{number}"));
                let tickets: Vec<_> = (0..200).map(|number| put(number).unwrap()).collect();
                tickets.into_iter().all(|ticket| ticket.wait().is_placed())
            })
        })
        .collect();
    for thread in threads {
        assert!(thread.join().unwrap());
    }
    assert_eq!(producer.stats().placed, 800);
    assert_eq!(producer.close(Duration::from_secs(5)).placed, 800);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (key, numbers) in runtime.block_on(stage.first_deliveries()) {
        assert_eq!(numbers, (0..200).collect::<Vec<u64>>(), "{key}");
    }
}
