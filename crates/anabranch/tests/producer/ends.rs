//! Ends of a producer: full buffer, flush, close, drop, and threads.

use crate::stage::{ProducerFixture, STREAM, quick, with_timeout};
use anabranch::event::{Event, Events, ProducerEvent};
use anabranch::producer::{
    Bulk, NewRecord, Outcome, Producer, ProducerBuilder, PutError, RejectReason, SyncProducer,
    TryPutBulkError, TryPutError,
};
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::Operation;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Returns a producer with a buffer of 64 KiB, which retries at once.
fn small() -> ProducerBuilder {
    Producer::new(STREAM)
        .with_buffer_bytes(64 << 10)
        .with_backoff(Duration::from_millis(1)..=Duration::from_millis(5))
}

/// Returns the first deliveries, for tests without a runtime.
fn delivered(stage: &ProducerFixture) -> BTreeMap<String, Vec<u64>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(stage.first_deliveries())
}

/// Returns an event listener, and the numbers of records that dropped producers abandoned.
fn abandoned() -> (Events, Arc<Mutex<Vec<u64>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let events = Events::new(move |event| {
        if let Event::Producer(ProducerEvent::Abandoned { records, .. }) = event {
            listener.lock().unwrap().push(*records);
        }
    });
    (events, told)
}

#[tokio::test]
async fn a_full_buffer_makes_puts_wait_and_tries_fail() {
    let stage = ProducerFixture::new(1);
    let stuck = stage.fault(Operation::PutRecords, FaultEffect::InternalError, 1.0);
    let producer = small().with_kinesis(stage.api()).start().await.unwrap();
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

/// Number of records in a buffer of 64 KiB when a put has to wait: each takes 1,257 bytes.
const FULL: usize = (64 << 10) / 1_257;

#[tokio::test]
async fn puts_take_room_until_their_outcome_and_leave_all_of_it_behind() {
    let stage = ProducerFixture::new(1);
    let stuck = stage.fault(Operation::PutRecords, FaultEffect::InternalError, 1.0);
    let producer = small().with_kinesis(stage.api()).start().await.unwrap();
    let put = |number: usize| producer.put("k", format!("{number:01000}"));
    let mut tickets = Vec::new();
    for number in 0..FULL {
        tickets.push(with_timeout(put(number)).await.unwrap());
    }
    // Cancelled puts leave nothing: no record, and no permits.
    for _ in 0..3 {
        let waited = tokio::time::timeout(Duration::from_millis(30), put(999)).await;
        assert!(waited.is_err(), "{FULL} records fill the buffer");
    }
    assert_eq!(producer.stats().received, FULL as u64);
    let next = put(FULL);
    let released = async {
        tokio::task::yield_now().await;
        stage.engine.faults().remove(stuck);
    };
    let (next, ()) = with_timeout(async { tokio::join!(next, released) }).await;
    tickets.push(next.unwrap());
    for ticket in tickets {
        assert!(with_timeout(ticket).await.is_placed());
    }
    // The whole buffer is free again, in one piece: a record that needs all of it is accepted at
    // once, and leaves nothing for another until it has its outcome.
    stage.fault(Operation::PutRecords, FaultEffect::InternalError, 1.0);
    let whole = producer.try_put("k", format!("998{}", " ".repeat(64 << 10))).unwrap();
    assert!(matches!(producer.try_put("k", ""), Err(TryPutError::Full(_))));
    stage.engine.faults().clear();
    assert!(with_timeout(whole).await.is_placed());
    assert!(with_timeout(producer.put("k", "1000").await.unwrap()).await.is_placed());
    let account = with_timeout(producer.close(Duration::from_secs(5))).await;
    assert_eq!((account.placed, account.is_complete()), (FULL as u64 + 3, true));
    let numbers: Vec<u64> = (0..=FULL as u64).collect();
    assert_eq!(stage.first_deliveries().await["k"][..=FULL], numbers);
}

#[tokio::test]
async fn a_small_record_takes_no_more_room_than_its_own() {
    let stage = ProducerFixture::new(1);
    let producer =
        Producer::new(STREAM).with_buffer_bytes(100_000).with_kinesis(stage.api()).start();
    let producer = producer.await.unwrap();
    // The driver does not run between these: nothing is awaited.
    let mut tickets = vec![producer.try_put("k", "small").unwrap()];
    tickets.push(producer.try_put("k", vec![0; 99_000]).unwrap());
    tickets.push(producer.try_put("k", "small").unwrap());
    assert!(matches!(producer.try_put("k", vec![0; 500]), Err(TryPutError::Full(_))));
    assert!(matches!(producer.try_put("k", vec![0; 600]), Err(TryPutError::Full(_))));
    let (mut bulk, mut late) = (Bulk::new(), Bulk::new());
    bulk.push("k", vec![0; 99_000]);
    late.push("k", vec![0; 100]);
    assert!(matches!(producer.try_put_bulk(bulk.clone()), Err(TryPutBulkError::Full(_))));
    producer.flush().await;
    for ticket in tickets {
        assert!(ticket.await.is_placed());
    }
    let small = producer.try_put("k", "small").unwrap();
    let large = producer.try_put_bulk(bulk).unwrap();
    let last = producer.try_put_bulk(late).unwrap();
    assert!(small.await.is_placed() && large.await.all_placed() && last.await.all_placed());
}

#[tokio::test]
async fn a_producer_that_is_being_closed_takes_no_small_record() {
    let stage = ProducerFixture::new(1);
    let producer = Producer::new(STREAM).with_kinesis(stage.api()).start().await.unwrap();
    let ticket = producer.try_put("k", "1").unwrap();
    let late = async { producer.try_put("k", "2") };
    let (account, late) =
        with_timeout(async { tokio::join!(biased; producer.close(Duration::from_secs(30)), late) })
            .await;
    assert!(matches!(late, Err(TryPutError::Refused(PutError::Closed))), "{late:?}");
    assert!(ticket.await.is_placed() && account.placed == 1);
}

#[tokio::test]
async fn who_puts_without_a_pause_lets_others_run() {
    let stage = ProducerFixture::new(4);
    let producer = Producer::new(STREAM).with_kinesis(stage.api()).start().await.unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let others = tokio::spawn({
        let ran = Arc::clone(&ran);
        async move {
            loop {
                ran.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        }
    });
    for number in 0..5_000 {
        drop(producer.put("key", format!("{number}")).await.unwrap());
    }
    let by_singles = ran.swap(0, Ordering::Relaxed);
    assert!((2..=30).contains(&by_singles), "they ran {by_singles} times");
    for number in 0..50 {
        let bulk = (0..100).map(|_| ("key", format!("{number}"))).collect();
        drop(producer.put_bulk(bulk).await.unwrap());
    }
    let by_bulks = ran.load(Ordering::Relaxed);
    assert!((2..=30).contains(&by_bulks), "they ran {by_bulks} times");
    others.abort();
    assert!(with_timeout(producer.close(Duration::from_secs(30))).await.is_complete());
}

#[tokio::test]
async fn who_is_refused_again_and_again_lets_others_run() {
    let stage = ProducerFixture::new(1);
    let producer = Producer::new(STREAM).with_kinesis(stage.api()).start().await.unwrap();
    for refused in 0..3 {
        let other = tokio::spawn(async {});
        for _ in 0..10_000 {
            let is_refused = match refused {
                0 => producer.put("", "data").await.is_err(),
                1 => producer.put_record(NewRecord::new("", "data")).await.is_err(),
                _ => producer.put_bulk([("", "data")].into_iter().collect()).await.is_err(),
            };
            assert!(is_refused);
        }
        assert!(other.is_finished(), "{refused}");
    }
}

#[tokio::test]
async fn puts_that_one_task_polls_together_pause_together() {
    let stage = ProducerFixture::new(1);
    let producer = Producer::new(STREAM).with_kinesis(stage.api()).start().await.unwrap();
    for round in 0..1_000_u64 {
        let put = |at: u64| producer.put("key", (3 * round + at).to_string());
        let (one, two, three) = tokio::join!(biased; put(0), put(1), put(2));
        drop((one.unwrap(), two.unwrap(), three.unwrap()));
    }
    assert!(with_timeout(producer.close(Duration::from_secs(30))).await.is_complete());
    let delivered = stage.first_deliveries().await;
    let numbers: Vec<_> = delivered.into_values().flatten().collect();
    assert_eq!(numbers, (0..3_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_dropped_ticket_holds_no_room() {
    let stage = ProducerFixture::new(1);
    let producer = small().with_kinesis(stage.api()).start().await.unwrap();
    for number in 0..10 * FULL {
        drop(with_timeout(producer.put("k", format!("{number:01000}"))).await.unwrap());
    }
    let account = with_timeout(producer.close(Duration::from_secs(5))).await;
    assert_eq!((account.placed, account.is_complete()), (10 * FULL as u64, true));
}

#[tokio::test]
async fn records_that_a_dropped_producer_never_looked_at_are_told_too() {
    let stage = ProducerFixture::new(1);
    let (events, told) = abandoned();
    let producer =
        Producer::new(STREAM).with_events(events).with_kinesis(stage.api()).start().await.unwrap();
    // Nothing else runs between these puts and the drop.
    let tickets = [producer.try_put("a", "1").unwrap(), producer.try_put("b", "2").unwrap()];
    let waits = producer.clone();
    drop(producer);
    assert!(told.lock().unwrap().is_empty(), "a clone still holds it");
    drop(waits);
    for ticket in tickets {
        let outcome = with_timeout(ticket).await;
        assert!(
            matches!(outcome, Outcome::Rejected { why: RejectReason::Closed, .. }),
            "{outcome:?}"
        );
    }
    assert_eq!(*told.lock().unwrap(), [2]);
    assert_eq!(stage.read_all().await.len(), 0, "nothing of it was sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_outcomes_are_told_when_a_flush_returns() {
    let producer = quick().with_kinesis(ProducerFixture::new(1).api()).start().await.unwrap();
    for round in 0..30 {
        let mut tickets = Vec::new();
        for number in 0..2_000 {
            tickets.push(producer.put(number.to_string(), "1").await.unwrap());
        }
        with_timeout(producer.flush()).await;
        // In reverse order: the last tickets are resolved last.
        let untold = tickets.iter().rev().filter(|ticket| ticket.try_outcome().is_none()).count();
        assert_eq!(untold, 0, "in round {round}");
    }
}

#[tokio::test]
async fn closing_accounts_for_every_record() {
    let stage = ProducerFixture::new(2);
    let producer = Producer::new(STREAM)
        .with_backoff(Duration::from_millis(5)..=Duration::from_millis(10))
        .with_kinesis(stage.api())
        .start()
        .await
        .unwrap();
    let placed = producer.put("a", "1").await.unwrap();
    producer.flush().await;
    assert!(placed.try_outcome().is_some_and(|outcome| outcome.is_placed()), "flush waits");
    // From here on no call is answered, though half of them are applied.
    stage.fault(Operation::PutRecords, FaultEffect::DropReply, 1.0);
    let lost = producer.put("a", "2").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let queued = producer.put("a", "3").await.unwrap();
    let account = producer.close(Duration::from_millis(100)).await;
    assert_eq!((account.placed, account.rejected, account.unknown), (1, 1, 1));
    assert!(matches!(lost.await, Outcome::Unknown { attempts } if attempts.count() > 0));
    assert!(matches!(queued.await, Outcome::Rejected { why: RejectReason::Closed, .. }));
    assert_eq!(producer.put("a", "4").await.unwrap_err(), PutError::Closed);
    assert_eq!(producer.close(Duration::ZERO).await, account, "a second close says the same");
    producer.flush().await;
}

#[tokio::test]
async fn a_throttle_during_close_loses_nothing() {
    let stage = ProducerFixture::new(2);
    stage.fault(Operation::PutRecords, FaultEffect::ThrottleEntries, 0.5);
    let producer = Producer::new(STREAM)
        .with_backoff(Duration::from_millis(1)..=Duration::from_millis(10))
        .with_kinesis(stage.api())
        .start()
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
    let stage = ProducerFixture::new(1);
    stage.fault(Operation::PutRecords, FaultEffect::InternalError, 1.0);
    let (events, told) = abandoned();
    let producer =
        Producer::new(STREAM).with_events(events).with_kinesis(stage.api()).start().await.unwrap();
    let tickets = [producer.put("a", "1").await.unwrap(), producer.put("b", "2").await.unwrap()];
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(producer);
    for ticket in tickets {
        assert!(!ticket.await.is_placed());
    }
    assert_eq!(*told.lock().unwrap(), [2]);
}

#[tokio::test]
async fn puts_that_wait_for_room_end_with_the_producer() {
    let stage = ProducerFixture::new(1);
    stage.fault(Operation::PutRecords, FaultEffect::InternalError, 1.0);
    let producer = small().with_kinesis(stage.api()).start().await.unwrap();
    let mut tickets = Vec::new();
    while let Ok(ticket) = producer.try_put("k", vec![b'x'; 1_000]) {
        tickets.push(ticket);
    }
    let (one, other) = (producer.put("k", vec![0; 5_000]), producer.put("k", vec![0; 5_000]));
    let closing = async {
        tokio::task::yield_now().await;
        let (first, second) = (Duration::from_hours(1), Duration::from_millis(50));
        tokio::join!(producer.close(first), producer.close(second), producer.flush())
    };
    let (one, other, closed) = with_timeout(async { tokio::join!(one, other, closing) }).await;
    assert_eq!(one.unwrap_err(), PutError::Closed);
    assert_eq!(other.unwrap_err(), PutError::Closed);
    let account = closed.0;
    assert_eq!((account.placed, account), (0, closed.1), "both wait for the same end");
    assert_eq!(account.rejected + account.unknown, tickets.len() as u64, "each is accounted for");
    for ticket in tickets {
        assert!(!with_timeout(ticket).await.is_placed());
    }
    with_timeout(producer.flush()).await;
    assert!(!with_timeout(producer.resume("k")).await);
}

#[test]
fn threads_that_wait_for_room_keep_their_order_and_lose_nothing() {
    let stage = ProducerFixture::new(2);
    stage.fault(Operation::PutRecords, FaultEffect::ThrottleEntries, 0.3);
    let producer =
        SyncProducer::start(small().with_rate_percent(1_000).with_kinesis(stage.api())).unwrap();
    // Eight threads put fifty kilobytes each, into a buffer of sixty-four.
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let producer = producer.clone();
            scope.spawn(move || {
                for number in 0..50 {
                    let record = NewRecord::new(format!("t{thread}"), format!("{number:01000}"));
                    drop(producer.put_record(record).unwrap());
                }
                producer.flush();
            });
        }
    });
    let account = producer.close(Duration::from_secs(30));
    assert_eq!((account.placed, account.is_complete()), (400, true));
    assert!(producer.put("t0", "late").is_err());
    let delivered = delivered(&stage);
    assert_eq!(delivered.len(), 8);
    for (key, numbers) in delivered {
        assert_eq!(numbers, (0..50).collect::<Vec<u64>>(), "{key}");
    }
}

#[test]
fn small_records_and_bulks_that_need_all_the_room_wait_for_each_other_and_not_for_ever() {
    let stage = ProducerFixture::new(2);
    let producer =
        SyncProducer::start(small().with_rate_percent(1_000).with_kinesis(stage.api())).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let producer = producer.clone();
            scope.spawn(move || {
                for number in 0..2_000 {
                    drop(producer.put(format!("t{thread}"), format!("{number}")).unwrap());
                }
                producer.flush();
            });
        }
        for thread in 0..2 {
            let producer = producer.clone();
            scope.spawn(move || {
                for number in 0..20 {
                    // Larger than the buffer, so it takes all of it.
                    let data = |at: u64| format!("{:01000}", number * 80 + at);
                    let bulk = (0..80).map(|at| (format!("b{thread}"), data(at))).collect();
                    drop(producer.put_bulk(bulk).unwrap());
                }
                producer.flush();
            });
        }
    });
    assert!(producer.close(Duration::from_secs(30)).is_complete());
    let delivered = delivered(&stage);
    assert_eq!(delivered.len(), 5);
    for (key, numbers) in delivered {
        let count = if key.starts_with('t') { 2_000 } else { 1_600 };
        assert_eq!(numbers, (0..count).collect::<Vec<u64>>(), "{key}");
    }
}

#[test]
fn threads_put_and_wait_without_a_runtime() {
    let stage = ProducerFixture::new(2);
    let producer = SyncProducer::start(Producer::new(STREAM).with_kinesis(stage.api())).unwrap();
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
    for (key, numbers) in delivered(&stage) {
        assert_eq!(numbers, (0..200).collect::<Vec<u64>>(), "{key}");
    }
}
