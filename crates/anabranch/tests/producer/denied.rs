//! A stream that refuses the caller for a while: records wait, and none is given up.

use crate::stage::{ProducerFixture, STREAM, quick, with_timeout};
use anabranch::event::{Event, Events, ProducerEvent};
use anabranch::producer::{KeyOrder, Outcome, Producer, ProducerBuilder, RejectReason};
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::Operation;
use anabranch_model::retry::Fault;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const DENIALS: [(FaultEffect, Fault, &str); 4] = [
    (FaultEffect::Deny, Fault::AccessDenied, "AccessDeniedException"),
    (FaultEffect::DisableKey, Fault::KeyUnusable, "KMSDisabledException"),
    (FaultEffect::UnknownClient, Fault::AccessDenied, "UnrecognizedClientException"),
    (FaultEffect::ExpireToken, Fault::CredentialsExpired, "ExpiredTokenException"),
];

type PauseEvents = Arc<Mutex<Vec<ProducerEvent>>>;

/// Collects the events around pauses.
fn listened(builder: ProducerBuilder) -> (ProducerBuilder, PauseEvents) {
    let kept = PauseEvents::default();
    let told = Arc::clone(&kept);
    let events = Events::new(move |event| {
        if let Event::Producer(
            event @ (ProducerEvent::Paused { .. }
            | ProducerEvent::Resumed { .. }
            | ProducerEvent::KeyStopped { .. }
            | ProducerEvent::Rejected { .. }),
        ) = event
        {
            told.lock().unwrap().push(event.clone());
        }
    });
    let wait = Duration::from_millis(20)..=Duration::from_millis(200);
    (builder.with_refusal_backoff(wait).with_events(events), kept)
}

async fn until(what: &str, kept: &PauseEvents, found: impl Fn(&ProducerEvent) -> bool) {
    for _ in 0..1_000 {
        if kept.lock().unwrap().iter().any(&found) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no event of this kind: {what}; {:?}", kept.lock().unwrap());
}

#[tokio::test]
async fn records_wait_while_the_caller_is_refused_and_go_on_in_order_by_themselves() {
    for (effect, fault, code) in DENIALS {
        for order in [KeyOrder::Strict, KeyOrder::None] {
            let stage = ProducerFixture::new(2);
            let (builder, kept) = listened(quick().with_order(order));
            let producer = builder.with_kinesis(stage.api()).start().await.unwrap();
            assert!(producer.put("k0", "0").await.unwrap().await.is_placed());
            let rule = stage.fault(Operation::PutRecords, effect, 1.0);
            let mut tickets = Vec::new();
            for number in 1..50 {
                for key in 0..10 {
                    let put = producer.put(format!("k{key}"), format!("{number}"));
                    tickets.push(put.await.unwrap());
                }
                if number % 10 == 0 {
                    tokio::time::sleep(Duration::from_millis(30)).await;
                }
            }
            until(code, &kept, |event| {
                matches!(event, ProducerEvent::Paused { fault: why, detail, .. }
                    if *why == fault && detail.contains(code))
            })
            .await;
            assert!(tickets.iter().all(|ticket| ticket.try_outcome().is_none()), "{effect:?}");
            stage.engine.faults().remove(rule);
            with_timeout(producer.flush()).await;
            for ticket in tickets {
                let outcome = ticket.await;
                assert!(outcome.is_placed(), "{effect:?}: {outcome:?}");
            }
            assert_eq!(producer.stopped_keys().await, []);
            let told = kept.lock().unwrap().clone();
            assert!(
                told.iter().all(|event| matches!(
                    event,
                    ProducerEvent::Paused { .. } | ProducerEvent::Resumed { .. }
                )),
                "{effect:?}: {told:?}"
            );
            assert!(
                matches!(told.last(), Some(ProducerEvent::Resumed { paused: 0, .. })),
                "{effect:?}: {told:?}"
            );
            assert!(told.len() <= 8, "{effect:?}: {} events for two shards", told.len());
            if order == KeyOrder::Strict {
                for (key, numbers) in stage.first_deliveries().await {
                    assert!(numbers.is_sorted(), "{effect:?}: {key}: {numbers:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn more_keys_than_may_stand_stopped_wait_like_one() {
    let stage = ProducerFixture::new(1);
    let (builder, _) = listened(quick().with_max_stopped_keys(2));
    let producer = builder.with_kinesis(stage.api()).start().await.unwrap();
    let rule = stage.fault(Operation::PutRecords, FaultEffect::Deny, 1.0);
    let mut tickets = Vec::new();
    for key in 0..100 {
        tickets.push(producer.put(format!("k{key}"), "1").await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    stage.engine.faults().remove(rule);
    for ticket in tickets {
        assert!(with_timeout(ticket).await.is_placed());
    }
}

#[tokio::test]
async fn a_deadline_bounds_the_wait_and_its_rejection_names_the_refusal() {
    let stage = ProducerFixture::new(1);
    let (builder, _) = listened(quick().with_deadline(Duration::from_millis(300)));
    let producer = builder.with_kinesis(stage.api()).start().await.unwrap();
    stage.fault(Operation::PutRecords, FaultEffect::DisableKey, 1.0);
    let began = std::time::Instant::now();
    let refused = with_timeout(producer.put("a", "1").await.unwrap()).await;
    assert!(began.elapsed() >= Duration::from_millis(300), "given up too early");
    let Outcome::Rejected { why: RejectReason::Refused { fault, detail }, attempts } = refused
    else {
        panic!("{refused:?}")
    };
    assert!(fault == Fault::KeyUnusable && detail.contains("KMSDisabledException"), "{detail}");
    assert!(attempts.count() > 1, "{attempts:?}");
}

#[tokio::test]
async fn a_close_during_a_refusal_accounts_for_every_record() {
    let stage = ProducerFixture::new(2);
    let (builder, _) = listened(quick());
    let producer = builder.with_kinesis(stage.api()).start().await.unwrap();
    assert!(producer.put("a", "0").await.unwrap().await.is_placed());
    stage.fault(Operation::PutRecords, FaultEffect::Deny, 1.0);
    let mut tickets = Vec::new();
    for key in 0..50 {
        tickets.push(producer.put(format!("k{key}"), "1").await.unwrap());
    }
    let account = with_timeout(producer.close(Duration::from_millis(500))).await;
    assert_eq!((account.placed, account.rejected + account.unknown), (1, 50), "{account:?}");
    for ticket in tickets {
        let outcome = ticket.await;
        assert!(
            matches!(&outcome, Outcome::Unknown { .. })
                || matches!(&outcome, Outcome::Rejected { why: RejectReason::Refused { detail, .. }, .. }
                    if detail.contains("AccessDenied")),
            "{outcome:?}"
        );
    }
}

#[tokio::test]
async fn a_producer_with_too_many_stopped_keys_goes_on_when_they_are_resumed() {
    let stage = ProducerFixture::new(1);
    let producer = Producer::new(STREAM)
        .with_max_stopped_keys(2)
        .with_kinesis(stage.api())
        .start()
        .await
        .unwrap();
    assert!(producer.put("a", "1").await.unwrap().await.is_placed());
    stage.delete();
    for key in ["a", "b", "c"] {
        assert!(!producer.put(key, "2").await.unwrap().await.is_placed());
    }
    stage.create(1, None);
    let put = async |key: &'static str, data: &'static str| {
        with_timeout(producer.put(key, data).await.unwrap()).await
    };
    assert!(matches!(
        put("d", "1").await,
        Outcome::Rejected { why: RejectReason::ProducerStopped, .. }
    ));
    assert!(producer.resume("a").await);
    assert!(put("a", "3").await.is_placed(), "a resumed key really goes on");
    assert!(!put("b", "3").await.is_placed(), "the others wait for their turn");
    assert_eq!(producer.resume_all().await, 1, "b; c was not known");
    for key in ["a", "b", "c", "d"] {
        assert!(put(key, "4").await.is_placed(), "{key}");
    }
    assert_eq!(producer.resume_all().await, 0);
}
