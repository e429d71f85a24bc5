//! Calls that panic, that never end, or whose reply arrives too late.

use crate::stage::{ProducerFixture, quick, with_timeout};
use anabranch::event::{Event, Events, ProducerEvent};
use anabranch::producer::{AttemptResult, Bulk, Outcome};
use anabranch::stream::LocalKinesis;
use anabranch::stream::api::{
    PutEntry, PutEntryResult, ShardFilter, ShardList, StreamApi, StreamError,
};
use anabranch_local::fault::{FaultEffect, FaultRule};
use anabranch_local::op::Operation;
use anabranch_model::ids::StreamName;
use anabranch_model::retry::Fault;
use bytes::Bytes;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

/// The local stream behind a client whose first calls panic, some after they took effect.
struct PanickingStream {
    local: LocalKinesis,
    /// Number of puts that still panic.
    puts: AtomicUsize,
    /// Number of lists that still panic.
    lists: AtomicUsize,
}

/// Decrements the counter. Returns true unless it was 0.
fn strikes(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

impl StreamApi for PanickingStream {
    delegate!(local: describe iterator records consumers subscribe put_record);

    async fn list_shards(
        &self,
        stream: &StreamName,
        filter: ShardFilter,
    ) -> Result<ShardList, StreamError> {
        assert!(!strikes(&self.lists), "a list that panics on purpose");
        self.local.list_shards(stream, filter).await
    }

    async fn put_records(
        &self,
        stream: &StreamName,
        entries: &[PutEntry],
    ) -> Result<Vec<PutEntryResult>, StreamError> {
        let panics = strikes(&self.puts);
        if panics && self.puts.load(Ordering::Relaxed).is_multiple_of(2) {
            self.local.put_records(stream, entries).await?;
        }
        assert!(!panics, "a put that panics on purpose");
        self.local.put_records(stream, entries).await
    }
}

#[tokio::test]
async fn every_ticket_resolves_although_calls_panic() {
    let stage = ProducerFixture::new(2);
    let (puts, lists) = (AtomicUsize::new(6), AtomicUsize::new(1));
    let api = PanickingStream { local: stage.api(), puts, lists };
    let producer = quick().with_kinesis(api).start().await.unwrap();
    let mut tickets = Vec::new();
    for number in 0..200_u32 {
        let key = format!("k{}", number % 5);
        tickets.push(producer.put(key, number.to_string()).await.unwrap());
    }
    with_timeout(producer.flush()).await;
    let mut most = 0;
    for ticket in tickets {
        let outcome = with_timeout(ticket).await;
        assert!(outcome.is_placed(), "{outcome:?}");
        let lost = |end: &AttemptResult| matches!(end, AttemptResult::Failed { fault: Fault::ReplyLost, detail } if detail.contains("panicked"));
        let panicked = outcome.attempts().iter().filter(|attempt| lost(&attempt.end)).count();
        most = most.max(panicked);
    }
    assert!(most > 0, "the attempts say what happened");
    let account = with_timeout(producer.close(Duration::from_secs(5))).await;
    assert_eq!((account.placed, account.is_complete()), (200, true));
    for (key, numbers) in stage.first_deliveries().await {
        assert!(numbers.is_sorted() && numbers.len() == 40, "{key} came as {numbers:?}");
    }
}

/// A waker that panics when it is woken.
struct PanickingWaker;

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics on purpose");
    }
}

/// Polls a future once with a waker that panics.
fn set_bomb(future: Pin<&mut impl Future>) {
    let waker = Waker::from(Arc::new(PanickingWaker));
    assert!(future.poll(&mut Context::from_waker(&waker)).is_pending());
}

fn bulk_of(records: u32) -> Bulk {
    (0..records).map(|number| ("bulk", number.to_string())).collect()
}

#[tokio::test]
async fn wakers_that_panic_are_nobody_elses_trouble() {
    let stage = ProducerFixture::new(2);
    let producer =
        quick().with_buffer_bytes(64 << 10).with_kinesis(stage.api()).start().await.unwrap();
    let put = async |number: u32| producer.put(format!("k{number}"), number.to_string()).await;
    let mut tickets = Vec::new();
    let mut bombs = Vec::new();
    for number in 0..100 {
        tickets.push(put(number).await.unwrap());
        if number % 20 == 0 {
            bombs.push(Box::pin(put(1_000 + number).await.unwrap()));
        }
    }
    let mut bulk_bomb = Box::pin(producer.put_bulk(bulk_of(10)).await.unwrap());
    let bulk = producer.put_bulk(bulk_of(10)).await.unwrap();
    let mut room_bomb = Box::pin(producer.put("room", "x".repeat(60 << 10)));
    set_bomb(room_bomb.as_mut());
    for bomb in &mut bombs {
        set_bomb(bomb.as_mut());
    }
    set_bomb(bulk_bomb.as_mut());
    for ticket in tickets {
        assert!(with_timeout(ticket).await.is_placed());
    }
    assert!(with_timeout(bulk).await.all_placed());
    for bomb in bombs {
        assert!(bomb.try_outcome().unwrap().is_placed());
    }
    assert!(bulk_bomb.try_outcomes().unwrap().all_placed());
    assert!(with_timeout(with_timeout(room_bomb).await.unwrap()).await.is_placed());
    assert!(with_timeout(put(200).await.unwrap()).await.is_placed());
    let account = with_timeout(producer.close(Duration::from_secs(5))).await;
    assert_eq!((account.placed, account.is_complete()), (100 + 5 + 20 + 1 + 1, true));
}

#[tokio::test]
async fn every_ticket_resolves_although_a_waker_panics_when_the_producer_is_dropped() {
    let stage = ProducerFixture::new(2);
    stage.fault(Operation::PutRecords, FaultEffect::InternalError, 1.0);
    let producer = quick().with_kinesis(stage.api()).start().await.unwrap();
    let mut bomb = Box::pin(producer.put("k", "0").await.unwrap());
    let ticket = producer.put("k", "1").await.unwrap();
    let mut bulk_bomb = Box::pin(producer.put_bulk(bulk_of(5)).await.unwrap());
    let bulk = producer.put_bulk(bulk_of(5)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(30)).await;
    set_bomb(bomb.as_mut());
    set_bomb(bulk_bomb.as_mut());
    drop(producer);
    assert!(!with_timeout(ticket).await.is_placed());
    assert_eq!(with_timeout(bulk).await.account().placed, 0);
    assert!(bomb.try_outcome().is_some() && bulk_bomb.try_outcomes().is_some());
}

#[test]
fn a_flush_ends_with_all_outcomes_told_although_the_driver_is_brought_down() {
    for round in 0..5 {
        let home = tokio::runtime::Runtime::new().unwrap();
        let elsewhere = tokio::runtime::Runtime::new().unwrap();
        let stage = ProducerFixture::new(2);
        let producer = home.block_on(quick().with_kinesis(stage.api()).start()).unwrap();
        stage.fault(Operation::PutRecords, FaultEffect::InternalError, 1.0);
        let tickets = elsewhere.block_on(async {
            let mut tickets = Vec::new();
            for number in 0..5_000 {
                tickets.push(producer.put(number.to_string(), "1").await.unwrap());
            }
            tickets
        });
        let flushed = elsewhere.spawn(async move {
            producer.flush().await;
            // In reverse order: the last tickets are resolved last.
            tickets.iter().rev().filter(|ticket| ticket.try_outcome().is_none()).count()
        });
        std::thread::sleep(Duration::from_millis(30));
        drop(home);
        let untold = elsewhere.block_on(with_timeout(flushed)).unwrap();
        assert_eq!(untold, 0, "in round {round}");
    }
}

/// Data whose deallocation panics.
struct PanickingDrop;

impl AsRef<[u8]> for PanickingDrop {
    fn as_ref(&self) -> &[u8] {
        b"clinging"
    }
}

impl Drop for PanickingDrop {
    fn drop(&mut self) {
        panic!("this memory is not given back");
    }
}

#[tokio::test]
async fn a_record_whose_memory_is_given_back_with_a_panic_is_put_all_the_same() {
    let stage = ProducerFixture::new(1);
    let producer = quick().with_kinesis(stage.api()).start().await.unwrap();
    assert!(with_timeout(producer.put("k", "first").await.unwrap()).await.is_placed());
    // Until the driver is idle.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let data = Bytes::from_owner(PanickingDrop);
    let put = catch_unwind(AssertUnwindSafe(|| producer.try_put("k", data)));
    assert!(put.is_err(), "the panic is the caller's");
    // It is not awaited, and nothing more is put.
    with_timeout(async {
        while producer.stats().placed < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_list_that_panics_is_asked_for_again() {
    let stage = ProducerFixture::new(2);
    let (puts, lists) = (AtomicUsize::new(0), AtomicUsize::new(1));
    let api = PanickingStream { local: stage.api(), puts, lists };
    let mapped = Arc::new(AtomicUsize::new(0));
    let heard = Arc::clone(&mapped);
    let events = Events::new(move |event| {
        if matches!(event, Event::Producer(ProducerEvent::ShardMapRead { .. })) {
            heard.fetch_add(1, Ordering::Relaxed);
        }
    });
    let producer = quick().with_events(events).with_kinesis(api).start().await.unwrap();
    let putting = async {
        while mapped.load(Ordering::Relaxed) == 0 {
            drop(producer.put("a", "1").await.unwrap());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    with_timeout(putting).await;
}

#[tokio::test]
async fn a_call_without_a_reply_in_time_is_lost_and_sent_again() {
    let stage = ProducerFixture::new(1);
    stage.engine.faults().add(FaultRule {
        operation: Some(Operation::PutRecords),
        stream: None,
        shard: None,
        probability: 1.0,
        skip: 0,
        count: Some(1),
        effect: FaultEffect::Delay { ms: 3_600_000 },
    });
    let producer = quick()
        .with_request_timeout(Duration::from_millis(100))
        .with_kinesis(stage.api())
        .start()
        .await
        .unwrap();
    let ticket = producer.put("a", "1").await.unwrap();
    let behind = producer.put("a", "2").await.unwrap();
    let outcome = with_timeout(ticket).await;
    let Outcome::Placed { attempts, .. } = &outcome else { panic!("{outcome:?}") };
    let ends: Vec<_> = attempts.iter().map(|attempt| attempt.end.clone()).collect();
    let [AttemptResult::Failed { fault: Fault::ReplyLost, detail }, AttemptResult::Placed(_)] =
        ends.as_slice()
    else {
        panic!("{ends:?}")
    };
    assert_eq!(&**detail, "no reply within 100 ms");
    assert!(with_timeout(behind).await.is_placed());
    assert_eq!(stage.first_deliveries().await["a"], [1, 2]);
}

#[tokio::test]
async fn a_list_that_never_comes_holds_nothing_up() {
    let stage = ProducerFixture::new(1);
    stage.fault(Operation::ListShards, FaultEffect::Delay { ms: 3_600_000 }, 1.0);
    let producer = quick().with_kinesis(stage.api()).start().await.unwrap();
    for number in 0..20_u32 {
        let ticket = producer.put("a", number.to_string()).await.unwrap();
        assert!(with_timeout(ticket).await.is_placed());
    }
    let account = with_timeout(producer.close(Duration::from_secs(5))).await;
    assert_eq!((account.placed, account.is_complete()), (20, true));
}
