//! Subscriptions: events, the end of a shard, expiry, takeover.

use crate::stage::{EngineFixture, entry, id, reads, refused};
use anabranch_local::op::{ConsumerTarget, deregister_stream_consumer};
use anabranch_local::subscription::{Subscription, SubscriptionEvent, SubscriptionStep};
use anabranch_local::{EngineOptions, ErrorKind};
use std::time::Duration;

fn event(subscription: &mut Subscription) -> SubscriptionEvent {
    match subscription.step() {
        SubscriptionStep::Event(event) => event,
        other => panic!("expected an event, got {other:?}"),
    }
}

fn keys(event: &SubscriptionEvent) -> String {
    reads(&event.records).into_iter().map(|(_, key, _)| key).collect()
}

fn is_quiet(subscription: &mut Subscription) -> bool {
    matches!(subscription.step(), SubscriptionStep::Quiet { .. })
}

#[test]
fn records_are_pushed_and_the_continuation_goes_on_after_them() {
    let stage = EngineFixture::with_stream(1);
    let arn = stage.register("app").unwrap();
    stage.put("a");
    let mut first = stage.subscribe(&arn, 0, "TRIM_HORIZON", None).unwrap();
    assert_eq!(keys(&event(&mut first)), "a");
    assert!(is_quiet(&mut first));
    stage.put("b");
    stage.put("c");
    let pushed = event(&mut first);
    assert_eq!((keys(&pushed).as_str(), pushed.millis_behind_latest), ("bc", 0));
    stage.put("d");
    stage.advance(5_000);
    let mut second =
        stage.subscribe(&arn, 0, "AFTER_SEQUENCE_NUMBER", pushed.continuation).unwrap();
    assert_eq!(keys(&event(&mut second)), "d");
}

#[test]
fn an_empty_shard_has_a_continuation_too() {
    let stage = EngineFixture::with_stream(1);
    let arn = stage.register("app").unwrap();
    stage.put("a");
    let mut first = stage.subscribe(&arn, 0, "LATEST", None).unwrap();
    assert!(is_quiet(&mut first));
    stage.advance(stage.engine.options().heartbeat_ms);
    let beat = event(&mut first);
    assert!(beat.records.is_empty() && beat.child_shards.is_empty());
    stage.put("b");
    stage.advance(5_000);
    let mut second = stage.subscribe(&arn, 0, "AFTER_SEQUENCE_NUMBER", beat.continuation).unwrap();
    assert_eq!(keys(&event(&mut second)), "b", "nothing lost, nothing twice");
}

#[test]
fn a_subscription_ends_with_its_shard_and_names_the_children() {
    let stage = EngineFixture::with_stream(2);
    let arn = stage.register("app").unwrap();
    let mut lower = stage.subscribe(&arn, 0, "TRIM_HORIZON", None).unwrap();
    let mut upper = stage.subscribe(&arn, 1, "LATEST", None).unwrap();
    stage.try_put_entry(entry("a", Some("0"), b"")).unwrap();
    stage.merge(0, 1).unwrap();
    let last = event(&mut lower);
    assert_eq!((keys(&last).as_str(), last.continuation), ("a", None));
    let other = event(&mut upper);
    for end in [&last, &other] {
        let [child] = &end.child_shards[..] else { panic!("{end:?}") };
        assert_eq!((child.shard_id.as_str(), &child.parent_shards), (&*id(2), &vec![id(0), id(1)]));
    }
    assert!(
        matches!(lower.step(), SubscriptionStep::Ended)
            && matches!(upper.step(), SubscriptionStep::Ended)
    );
}

#[test]
fn a_second_subscription_is_refused_at_first_and_takes_over_later() {
    let stage = EngineFixture::with_stream(2);
    let arn = stage.register("app").unwrap();
    let other = stage.register("other").unwrap();
    let mut first = stage.subscribe(&arn, 0, "LATEST", None).unwrap();
    let again = |kind| stage.subscribe(&arn, 0, kind, None);
    refused(again("LATEST"), ErrorKind::ResourceInUse, "Another active subscription");
    stage.subscribe(&arn, 1, "LATEST", None).expect("another shard is free");
    stage.subscribe(&other, 0, "LATEST", None).expect("another consumer is free");
    stage.advance(4_999);
    refused(again("LATEST"), ErrorKind::ResourceInUse, "Another active subscription");
    stage.advance(1);
    let mut second = again("LATEST").unwrap();
    let SubscriptionStep::Failed(error) = first.step() else { panic!("the first goes on") };
    assert_eq!(error.kind, ErrorKind::ResourceInUse);
    assert!(matches!(first.step(), SubscriptionStep::Ended));
    assert!(is_quiet(&mut second));
    drop(second);
    refused(again("LATEST"), ErrorKind::ResourceInUse, "Another active subscription");
}

#[test]
fn a_subscription_ends_after_five_minutes_and_with_its_consumer() {
    let stage = EngineFixture::with_stream(1);
    let arn = stage.register("app").unwrap();
    let mut one = stage.subscribe(&arn, 0, "LATEST", None).unwrap();
    stage.advance(299_999);
    assert!(matches!(one.step(), SubscriptionStep::Event(_)));
    stage.advance(1);
    assert!(matches!(one.step(), SubscriptionStep::Ended));
    let mut two = stage.subscribe(&arn, 0, "LATEST", None).unwrap();
    let consumer = ConsumerTarget { consumer_arn: Some(arn.clone()), ..Default::default() };
    let request = deregister_stream_consumer::Request { consumer };
    stage.engine.deregister_stream_consumer(&request).unwrap();
    let SubscriptionStep::Failed(error) = two.step() else { panic!("the consumer is gone") };
    assert_eq!(error.kind, ErrorKind::ResourceNotFound);
    let late = stage.subscribe(&arn, 0, "LATEST", None);
    refused(late, ErrorKind::ResourceNotFound, "not found");
}

#[test]
fn a_consumer_gets_two_mebibytes_a_second_where_limits_hold() {
    let stage =
        EngineFixture::new(EngineOptions { enforce_limits: true, ..EngineOptions::instant() });
    stage.create("s", 1);
    let arn = stage.register("app").unwrap();
    let data = vec![0; 1024 * 1024 - 1];
    for _ in 0..12 {
        stage.try_put_entry(entry("k", None, &data)).unwrap();
        stage.advance(1_000);
    }
    let mut subscription = stage.subscribe(&arn, 0, "TRIM_HORIZON", None).unwrap();
    let mut got = Vec::new();
    for _ in 0..4 {
        let mut bytes = 0;
        while let SubscriptionStep::Event(event) = subscription.step() {
            bytes += event.records.bytes();
        }
        got.push(bytes / (1024 * 1024));
        stage.advance(1_000);
    }
    assert_eq!(got.iter().sum::<usize>(), 9, "a burst of three, then two a second: {got:?}");
}

#[tokio::test]
async fn waiting_wakes_for_records_for_the_clock_and_for_the_end() {
    let stage = EngineFixture::with_stream(1);
    let arn = stage.register("app").unwrap();
    let mut subscription = stage.subscribe(&arn, 0, "LATEST", None).unwrap();
    let long = Duration::from_secs(30);
    {
        let next = subscription.next();
        tokio::pin!(next);
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut next).await.is_err());
        stage.put("a");
        let pushed = tokio::time::timeout(long, next).await.unwrap().unwrap().unwrap();
        assert_eq!(keys(&pushed), "a");
    }
    {
        let next = subscription.next();
        tokio::pin!(next);
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut next).await.is_err());
        stage.advance(2_000);
        let beat = tokio::time::timeout(long, next).await.unwrap().unwrap().unwrap();
        assert!(beat.records.is_empty());
    }
    {
        let next = subscription.next();
        tokio::pin!(next);
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut next).await.is_err());
        stage.split(0, 1 << 127).unwrap();
        let end = tokio::time::timeout(long, next).await.unwrap().unwrap().unwrap();
        assert_eq!(end.child_shards.len(), 2);
    }
    assert!(subscription.next().await.is_none());
}
