//! Bulk puts: the order of the records, their outcomes, and their share of the buffer.

use crate::stage::{ProducerFixture, STREAM, quick, with_timeout};
use anabranch::clock::Clock;
use anabranch::event::{Event, Events, ProducerEvent};
use anabranch::producer::{
    Bulk, BulkTicket, NewRecord, Outcome, Producer, PutError, RejectReason, SyncProducer,
    TryPutBulkError, TryPutError,
};
use anabranch_local::fault::{FaultEffect, FaultRule};
use anabranch_local::op::Operation;
use anabranch_model::hash::HashKey;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Returns a bulk whose records are numbers, under a few keys.
fn numbers(from: u64, count: u64) -> Bulk {
    let mut bulk = Bulk::new();
    for number in from..from + count {
        bulk.push(format!("k{}", number % 7), number.to_string());
    }
    bulk
}

#[tokio::test]
async fn bulks_and_single_puts_keep_their_order_and_each_record_has_its_own_outcome() {
    let stage = ProducerFixture::new(3);
    stage.fault(Operation::PutRecords, FaultEffect::FailEntries, 0.3);
    let producer = quick().with_kinesis(stage.api()).start().await.unwrap();
    let mut outcomes = Vec::new();
    let mut tickets: Vec<(u64, BulkTicket)> = Vec::new();
    let mut next = 0;
    for round in 0..40_u64 {
        let single = producer.put(format!("k{}", next % 7), next.to_string()).await.unwrap();
        outcomes.push((next, single));
        next += 1;
        tickets.push((next, with_timeout(producer.put_bulk(numbers(next, round))).await.unwrap()));
        next += round;
        if round == 15 {
            stage.split().await;
        }
    }
    with_timeout(producer.flush()).await;
    let mut placed: BTreeMap<u64, (String, u64)> = BTreeMap::new();
    let mut note = |number: u64, outcome: Outcome| match outcome {
        Outcome::Placed { sequence, sub, .. } => {
            placed.insert(number, (sequence.to_string(), sub));
        }
        other => panic!("{number}: {other:?}"),
    };
    for (number, ticket) in outcomes {
        note(number, with_timeout(ticket).await);
    }
    for (from, ticket) in tickets {
        let outcomes = ticket.try_outcomes().expect("a flush waits for bulks too");
        assert!(outcomes.all_placed());
        assert_eq!(outcomes.account().placed, outcomes.len() as u64);
        (from..).zip(outcomes.iter()).for_each(|(number, outcome)| note(number, outcome));
    }
    assert_eq!(placed.len() as u64, next);
    let account = with_timeout(producer.close(Duration::from_secs(5))).await;
    assert_eq!((account.placed, account.is_complete()), (next, true));
    for (key, numbers) in stage.first_deliveries().await {
        assert!(numbers.is_sorted(), "{key} came as {numbers:?}");
    }
    // Each record is at the position that its own outcome reports, and nowhere else.
    for record in stage.read_all().await {
        let number: u64 = std::str::from_utf8(&record.data).unwrap().parse().unwrap();
        assert_eq!(record.partition_key.as_str(), format!("k{}", number % 7));
        assert_eq!(placed.remove(&number), Some((record.sequence.to_string(), record.sub)));
    }
    assert!(placed.is_empty(), "{placed:?}");
}

#[tokio::test]
async fn a_bulk_with_a_record_that_no_stream_takes_is_given_back_whole() {
    let stage = ProducerFixture::new(1);
    let producer = quick().with_kinesis(stage.api()).start().await.unwrap();
    let mut bulk = numbers(0, 3);
    bulk.push("", "data");
    bulk.push("k", vec![0; 2 << 20]);
    let refused = with_timeout(producer.put_bulk(bulk.clone())).await.unwrap_err();
    assert_eq!((refused.at, &refused.why, &refused.bulk), (Some(3), &PutError::KeyEmpty, &bulk));
    let told = refused.to_string();
    assert!(told.starts_with("record 3 of the bulk (counted from 0): the partition key"), "{told}");
    let mut long = Bulk::new();
    long.push("ä".repeat(257), "");
    let refused = with_timeout(producer.put_bulk(long)).await.unwrap_err();
    assert_eq!(refused.why, PutError::KeyTooLong { chars: 257 });
    let mut wide = Bulk::new();
    wide.push("ä".repeat(256), "");
    assert!(with_timeout(with_timeout(producer.put_bulk(wide)).await.unwrap()).await.all_placed());
    let mut large = Bulk::new();
    large.push("k", vec![0; 2 << 20]);
    let refused = with_timeout(producer.put_bulk(large)).await.unwrap_err();
    assert!(format!("{refused:?}").len() < 200, "{refused:?}");
    assert!(matches!(refused.why, PutError::TooLarge { bytes, .. } if bytes == (2 << 20) + 1));
    assert_eq!(with_timeout(producer.close(Duration::from_secs(5))).await.placed, 1);
    let refused = with_timeout(producer.put_bulk(numbers(0, 2))).await.unwrap_err();
    assert_eq!((refused.at, &refused.why, refused.bulk.len()), (None, &PutError::Closed, 2));
    let refused = TryPutBulkError::Refused(refused);
    assert_eq!(producer.try_put_bulk(numbers(0, 2)).unwrap_err(), refused);
}

#[test]
fn what_is_taken_out_of_a_bulk_leaves_the_others_as_they_were() {
    let record = |number: u64| {
        let record =
            NewRecord::new(format!("k{number}"), "x".repeat(usize::try_from(number).unwrap()));
        let explicit = record.clone().with_explicit_hash_key(HashKey(number.into()));
        if number.is_multiple_of(3) { explicit } else { record }
    };
    for gone in 0..8 {
        let mut bulk: Bulk = (0..8).map(record).collect();
        let at = usize::try_from(gone).unwrap();
        assert_eq!(bulk.remove(at), Some(record(gone)));
        assert_eq!(bulk, (0..8).filter(|number| *number != gone).map(record).collect());
        assert_eq!(bulk.remove(7), None);
    }
}

#[tokio::test]
async fn a_bulk_larger_than_the_buffer_gives_back_what_its_placed_records_held_and_no_more() {
    const BUFFER: usize = 64 << 10;
    let stage = ProducerFixture::new(2);
    let producer =
        quick().with_buffer_bytes(BUFFER).with_kinesis(stage.api()).start().await.unwrap();
    assert!(with_timeout(producer.put("first", "0").await.unwrap()).await.is_placed());
    let shards = stage.open_shards().await;
    stage.engine.faults().add(FaultRule {
        operation: Some(Operation::PutRecords),
        stream: None,
        shard: Some(shards[1].id.to_string()),
        probability: 1.0,
        skip: 0,
        count: None,
        effect: FaultEffect::Throttle,
    });
    // A quarter is placed, and the rest is not.
    let mut bulk = Bulk::new();
    for number in 0..1_000_u32 {
        let hash = if number < 250 { HashKey::MIN } else { HashKey::MAX };
        bulk.push_explicit(format!("k{}", number % 50), number.to_string(), hash);
    }
    let ticket = with_timeout(producer.put_bulk(bulk)).await.unwrap();
    let placed = async {
        while producer.stats().pending != 750 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    with_timeout(placed).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let full = producer.try_put("k", " ".repeat(BUFFER * 3 / 10));
    assert!(matches!(full, Err(TryPutError::Full(_))), "{full:?}");
    let full = producer.try_put_bulk(numbers(0, 100));
    assert!(matches!(full, Err(TryPutBulkError::Full(bulk)) if bulk == numbers(0, 100)));
    let fits = producer.try_put_bulk(numbers(0, 50)).unwrap();
    assert!(ticket.try_outcomes().is_none());
    stage.engine.faults().clear();
    assert!(with_timeout(ticket).await.all_placed() && with_timeout(fits).await.all_placed());
    assert_eq!(with_timeout(producer.close(Duration::from_secs(5))).await.placed, 1_051);
}

#[tokio::test]
async fn a_bulk_without_records_is_over_at_once() {
    let producer = quick().with_kinesis(ProducerFixture::new(1).api()).start().await.unwrap();
    let ticket = with_timeout(producer.put_bulk(Bulk::new())).await.unwrap();
    assert!(ticket.try_outcomes().unwrap().is_empty());
    let outcomes = with_timeout(ticket).await;
    assert!(outcomes.all_placed() && outcomes.get(0).is_none() && outcomes.iter().count() == 0);
}

#[tokio::test]
async fn a_bulk_takes_its_room_until_its_outcomes_and_leaves_all_of_it_behind() {
    const BUFFER: usize = 64 << 10;
    let stage = ProducerFixture::new(2);
    let stuck = stage.fault(Operation::PutRecords, FaultEffect::InternalError, 1.0);
    let producer =
        quick().with_buffer_bytes(BUFFER).with_kinesis(stage.api()).start().await.unwrap();
    for records in [50, 1_000] {
        // A part of the buffer, and more than all of it.
        let bulk = numbers(0, records);
        let ticket = with_timeout(producer.put_bulk(bulk)).await.unwrap();
        let fits = producer.try_put("k0", " ".repeat(BUFFER - 50 * 300)).is_ok();
        assert_eq!(fits, records == 50);
        assert!(matches!(
            producer.try_put("k0", " ".repeat(BUFFER - 50 * 256)),
            Err(TryPutError::Full(_))
        ));
        // A put that waits for free space and is cancelled leaves nothing.
        let waits = producer.put_bulk(numbers(0, 200));
        assert!(tokio::time::timeout(Duration::from_millis(30), waits).await.is_err());
        stage.engine.faults().clear();
        assert!(with_timeout(ticket).await.all_placed());
        with_timeout(producer.flush()).await;
        stage.fault(Operation::PutRecords, FaultEffect::InternalError, 1.0);
        assert_eq!(producer.stats().pending, 0);
    }
    stage.engine.faults().clear();
    // The whole buffer is free again, and no more than that.
    stage.fault(Operation::PutRecords, FaultEffect::InternalError, 1.0);
    let whole = producer.try_put("k", " ".repeat(BUFFER)).unwrap();
    assert!(matches!(producer.try_put("k", ""), Err(TryPutError::Full(_))));
    stage.engine.faults().clear();
    assert!(with_timeout(whole).await.is_placed());
    let account = with_timeout(producer.close(Duration::from_secs(5))).await;
    assert_eq!((account.placed, account.is_complete()), (50 + 1 + 1_000 + 1, true));
    assert!(!stage.engine.faults().remove(stuck), "it was cleared");
}

#[tokio::test]
async fn a_bulk_that_a_dropped_producer_never_looked_at_is_told_too() {
    let stage = ProducerFixture::new(1);
    let abandoned = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&abandoned);
    let events = Events::new(move |event| {
        if let Event::Producer(ProducerEvent::Abandoned { records, .. }) = event {
            heard.lock().unwrap().push(*records);
        }
    });
    let producer = quick().with_events(events).with_kinesis(stage.api()).start().await.unwrap();
    // Nothing else runs between these puts and the drop.
    let single = producer.try_put("a", "1").unwrap();
    let ticket = with_timeout(producer.put_bulk(numbers(0, 3))).await.unwrap();
    drop(producer);
    let outcomes = with_timeout(ticket).await;
    assert_eq!(outcomes.account().rejected, 3);
    let closed =
        |outcome: Outcome| matches!(outcome, Outcome::Rejected { why: RejectReason::Closed, .. });
    assert!(outcomes.iter().all(closed) && closed(with_timeout(single).await));
    assert_eq!(*abandoned.lock().unwrap(), [4]);
    assert_eq!(stage.read_all().await.len(), 0, "nothing of it was sent");
}

#[tokio::test]
async fn records_of_a_stopped_key_are_refused_and_the_others_of_the_bulk_are_placed() {
    let stage = ProducerFixture::new(2);
    let producer =
        quick().with_deadline(Duration::from_millis(200)).with_kinesis(stage.api()).start().await;
    let producer = producer.unwrap();
    stage.fault(Operation::PutRecords, FaultEffect::InternalError, 1.0);
    let lost = with_timeout(producer.put("a", "0").await.unwrap()).await;
    assert!(!lost.is_placed());
    stage.engine.faults().clear();
    let mut bulk = Bulk::new();
    for number in 1..=6 {
        bulk.push(if number % 3 == 0 { "a" } else { "b" }, number.to_string());
    }
    let outcomes = with_timeout(with_timeout(producer.put_bulk(bulk)).await.unwrap()).await;
    let account = outcomes.account();
    assert_eq!((account.placed, account.rejected, account.unknown), (4, 2, 0));
    assert!(!outcomes.all_placed());
    for (number, outcome) in (1..).zip(outcomes.iter()) {
        match outcome {
            Outcome::Placed { .. } => assert_ne!(number % 3, 0),
            Outcome::Rejected { why: RejectReason::KeyStopped, .. } => assert_eq!(number % 3, 0),
            other => panic!("{number}: {other:?}"),
        }
    }
    assert_eq!(stage.first_deliveries().await["b"], [1, 2, 4, 5]);
}

#[tokio::test]
async fn the_outcomes_of_containers_that_were_taken_apart_say_what_was_tried() {
    let stage = ProducerFixture::new(1);
    let producer = quick().with_kinesis(stage.api()).start().await.unwrap();
    // The shard map has one shard, and the Kinesis records built for it then meet two.
    assert!(with_timeout(producer.put("first", "0").await.unwrap()).await.is_placed());
    let ticket = with_timeout(producer.put_bulk(numbers(1, 50))).await.unwrap();
    stage.split().await;
    let outcomes = with_timeout(ticket).await;
    assert!(outcomes.all_placed(), "{:?}", outcomes.account());
    assert_eq!(outcomes.account().placed, 50);
    let shards: BTreeSet<String> = outcomes
        .iter()
        .map(|outcome| match outcome {
            Outcome::Placed { shard, attempts, .. } => {
                assert!(attempts.count() > 1, "a stray comes before it: {attempts:?}");
                shard.to_string()
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(shards.len(), 2);
}

#[tokio::test]
async fn records_of_a_bulk_go_where_their_explicit_hash_is() {
    let stage = ProducerFixture::new(2);
    let producer = quick().with_kinesis(stage.api()).start().await.unwrap();
    let record = |number: u64| {
        let hash = if number.is_multiple_of(2) { HashKey::MIN } else { HashKey::MAX };
        NewRecord::new("same", number.to_string()).with_explicit_hash_key(hash)
    };
    let mut bulk: Bulk = (0..10).map(record).collect();
    bulk.push("free", "10");
    bulk.extend([record(11)]);
    assert_eq!((bulk.len(), bulk.bytes()), (12, 11 * 4 + 4 + 10 + 2 * 2));
    let outcomes = with_timeout(with_timeout(producer.put_bulk(bulk)).await.unwrap()).await;
    let shards = stage.open_shards().await;
    for (number, outcome) in outcomes.iter().enumerate() {
        let Outcome::Placed { shard, .. } = outcome else { panic!("{outcome:?}") };
        if number != 10 {
            assert_eq!(shard, shards[number % 2].id, "{number}");
        }
    }
    for record in stage.read_all().await {
        let number: u64 = std::str::from_utf8(&record.data).unwrap().parse().unwrap();
        assert_eq!(record.explicit_hash_key.is_some() || number == 10, record.aggregated);
    }
}

#[tokio::test(start_paused = true)]
async fn a_bulk_that_someone_waits_for_leaves_when_nothing_more_is_put() {
    let stage = ProducerFixture::new(2);
    let linger = Duration::from_mins(1);
    let builder = Producer::new(STREAM).with_linger(linger).with_clock(Clock::of_runtime());
    let producer = builder.with_kinesis(stage.api()).start().await.unwrap();
    assert!(producer.put("first", "0").await.unwrap().await.is_placed());
    let mut ticket = producer.put_bulk(numbers(0, 20)).await.unwrap();
    tokio::time::sleep(linger / 2).await;
    assert!(ticket.try_outcomes().is_none(), "nobody waited");
    let soon = tokio::time::timeout(Duration::from_millis(100), &mut ticket).await;
    assert!(soon.unwrap().all_placed());
    assert!(ticket.try_outcomes().unwrap().all_placed(), "they are told again");
}

#[test]
fn a_thread_puts_bulks_too() {
    let stage = ProducerFixture::new(2);
    let producer = SyncProducer::start(quick().with_kinesis(stage.api())).unwrap();
    let ticket = producer.put_bulk(numbers(0, 100)).unwrap();
    assert!(ticket.wait().all_placed());
    let ticket = producer.put_bulk(numbers(100, 100)).unwrap();
    producer.flush();
    assert_eq!(ticket.try_outcomes().unwrap().account().placed, 100);
    assert_eq!(producer.close(Duration::from_secs(5)).placed, 200);
}
