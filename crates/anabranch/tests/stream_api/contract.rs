//! The contract of every implementation of `StreamApi`.

use crate::stage::StreamFixture;
use anabranch::stream::api::{
    FetchedRecords, PutEntry, PutEntryResult, ReadFrom, ShardFilter, ShardIterator, StreamApi,
    StreamError, StreamStatus, StreamSummary, Subscription, SubscriptionEvent,
};
use anabranch_local::fault::FaultEffect;
use anabranch_local::op::Operation;
use anabranch_model::hash::{HashKey, HashRange};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::retry::Fault;
use std::fmt::Debug;
use std::future::poll_fn;

pub(crate) async fn check(api: &impl StreamApi, stage: &StreamFixture) {
    streams(api, stage).await;
    shards(api, stage).await;
    reads(api, stage).await;
    puts(api, stage).await;
    faults(api, stage).await;
    fan_out(api, stage).await;
}

async fn streams(api: &impl StreamApi, stage: &StreamFixture) {
    let name = StreamName::from("streams");
    fails(api.describe(&name).await, Fault::Missing, "DescribeStreamSummary on streams failed");
    stage.create("streams", 3);
    let summary = api.describe(&name).await.unwrap();
    assert_eq!(summary.status, StreamStatus::Active);
    assert_eq!((summary.open_shards, summary.max_record_bytes), (3, 1024 * 1024));
    assert!(summary.arn.ends_with("stream/streams") && !summary.on_demand);
    let now = stage.engine().clock().now_ms();
    assert!(summary.created_ms <= now && now - summary.created_ms < 60_000);
    let by_arn = StreamName::from(summary.arn.as_str());
    assert_eq!(api.describe(&by_arn).await.unwrap(), summary);
    assert_eq!(api.list_shards(&by_arn, ShardFilter::All).await.unwrap().shards.len(), 3);
    stage.delete("streams");
    fails(api.describe(&name).await, Fault::Missing, "streams");
}

async fn shards(api: &impl StreamApi, stage: &StreamFixture) {
    // More than one page of the largest size.
    stage.create("wide", 10_100);
    let name = StreamName::from("wide");
    let list = api.list_shards(&name, ShardFilter::All).await.unwrap();
    assert_eq!(list.shards.len(), 10_100);
    let now = stage.engine().clock().now_ms();
    assert!(list.service_ms.is_some_and(|ms| now.abs_diff(ms) < 60_000), "{:?}", list.service_ms);
    stage.delete("wide");

    stage.create("cut", 1);
    let before = stage.engine().clock().now_ms();
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    let name = StreamName::from("cut");
    stage.split("cut", "shardId-000000000000");
    stage.merge("cut", "shardId-000000000001", "shardId-000000000002");
    let listed = async |filter| {
        let list = api.list_shards(&name, filter).await.unwrap();
        list.shards.iter().map(|shard| shard.id.index().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(listed(ShardFilter::All).await, [0, 1, 2, 3]);
    assert_eq!(listed(ShardFilter::AtLatest).await, [3]);
    assert_eq!(listed(ShardFilter::AtTrimHorizon).await, [0]);
    assert_eq!(listed(ShardFilter::AtTimestamp(before)).await, [0]);
    let shards = api.list_shards(&name, ShardFilter::All).await.unwrap().shards;
    let parents: Vec<Vec<_>> =
        shards.iter().map(|s| s.parents().map(|id| id.index().unwrap()).collect()).collect();
    assert_eq!(parents, [vec![], vec![0], vec![0], vec![1, 2]]);
    assert_eq!((shards[3].range, shards[1].range.start()), (HashRange::ALL, HashKey::MIN));
    assert!(shards[0].ending > Some(shards[0].starting) && shards[3].is_open());
    stage.delete("cut");
}

async fn reads(api: &impl StreamApi, stage: &StreamFixture) {
    stage.create("reads", 1);
    let name = StreamName::from("reads");
    let shard = ShardId::from_index(0);
    let mut numbers = Vec::new();
    for data in ["a", "b", "c", "d"] {
        numbers.push(api.put_record(&name, &entry("k", data), None).await.unwrap().sequence);
    }
    let read = async |at, limit| {
        let iterator = api.iterator(&name, &shard, at).await.unwrap();
        api.records(&name, &iterator, limit).await.unwrap()
    };
    let first = read(ReadFrom::TrimHorizon, 3).await;
    assert_eq!(text(&first), "abc");
    assert_eq!(first.records.iter().map(|r| r.sequence).collect::<Vec<_>>(), numbers[..3]);
    let now = stage.engine().clock().now_ms();
    assert!(first.records.iter().all(|r| r.partition_key.as_str() == "k"));
    assert!(first.records.iter().all(|r| now - r.arrival_ms < 60_000));
    let rest = api.records(&name, &first.next.unwrap(), 10).await.unwrap();
    assert_eq!((text(&rest), rest.behind_ms, rest.children.len()), ("d".to_owned(), 0, 0));
    assert_eq!(text(&read(ReadFrom::At(numbers[1]), 10).await), "bcd");
    assert_eq!(text(&read(ReadFrom::After(numbers[1]), 10).await), "cd");
    assert_eq!(text(&read(ReadFrom::Latest, 10).await), "");
    let arrival = first.records[0].arrival_ms;
    assert!(text(&read(ReadFrom::AtTimestamp(arrival), 10).await).starts_with('a'));

    stage.split("reads", shard.as_str());
    let last = read(ReadFrom::TrimHorizon, 10).await;
    assert_eq!((text(&last), last.next), ("abcd".to_owned(), None));
    let [low, high] = &last.children[..] else { panic!("two children: {:?}", last.children) };
    assert_eq!((low.id.index(), high.id.index()), (Some(1), Some(2)));
    assert_eq!(low.parents, std::slice::from_ref(&shard));
    assert!(low.range.is_followed_by(&high.range));

    let gone = ShardId::from_index(9);
    fails(api.iterator(&name, &gone, ReadFrom::TrimHorizon).await, Fault::Missing, gone.as_str());
    let nonsense = ShardIterator("nonsense".into());
    fails(api.records(&name, &nonsense, 10).await, Fault::Invalid, "GetRecords on reads");
    stage.delete("reads");
}

async fn puts(api: &impl StreamApi, stage: &StreamFixture) {
    stage.create("puts", 2);
    let name = StreamName::from("puts");
    let low = PutEntry { hash: Some(HashKey::MIN), ..entry("k", "low") };
    let high = PutEntry { hash: Some(HashKey::MAX), ..entry("k", "high") };
    let results = api.put_records(&name, &[high.clone(), low.clone()]).await.unwrap();
    let placed: Vec<_> = results
        .iter()
        .map(|result| match result {
            PutEntryResult::Placed(at) => at.shard.index().unwrap(),
            failed @ PutEntryResult::Failed { .. } => panic!("{failed:?}"),
        })
        .collect();
    assert_eq!(placed, [1, 0]);
    stage.strike(Operation::PutRecords, FaultEffect::ThrottleEntries);
    let results = api.put_records(&name, &[low.clone(), high]).await.unwrap();
    let [PutEntryResult::Failed { fault, code, message }, PutEntryResult::Placed(_)] = &results[..]
    else {
        panic!("{results:?}")
    };
    assert_eq!(*fault, Fault::Throttled);
    assert_eq!(code, "ProvisionedThroughputExceededException");
    assert!(message.contains("shardId-000000000000"), "{message}");
    let placed = api.put_record(&name, &low, None).await.unwrap();
    let after = api.put_record(&name, &low, Some(placed.sequence)).await.unwrap();
    assert!(after.sequence > placed.sequence);
    let nameless = entry("", "data");
    fails(api.put_record(&name, &nameless, None).await, Fault::Invalid, "PutRecord on puts");
    stage.delete("puts");
}

async fn faults(api: &impl StreamApi, stage: &StreamFixture) {
    stage.create("faults", 1);
    let name = StreamName::from("faults");
    let iterator =
        api.iterator(&name, &ShardId::from_index(0), ReadFrom::TrimHorizon).await.unwrap();
    for (effect, fault) in [
        (FaultEffect::Throttle, Fault::Throttled),
        (FaultEffect::InternalError, Fault::Internal),
        (FaultEffect::DropReply, Fault::ReplyLost),
        (FaultEffect::Deny, Fault::AccessDenied),
        (FaultEffect::ExpireToken, Fault::CredentialsExpired),
        (FaultEffect::ExpireIterator, Fault::IteratorExpired),
    ] {
        stage.strike(Operation::GetRecords, effect);
        fails(api.records(&name, &iterator, 10).await, fault, "GetRecords on faults");
        // One attempt per call: the fault was for one attempt, and the caller saw it.
        assert!(api.records(&name, &iterator, 10).await.is_ok(), "{effect:?} struck twice");
    }
    stage.strike(Operation::PutRecord, FaultEffect::DropReply);
    let lost = api.put_record(&name, &entry("k", "lost"), None).await;
    fails(lost, Fault::ReplyLost, "PutRecord on faults");
    let read = api.records(&name, &iterator, 10).await.unwrap();
    assert_eq!(text(&read), "lost", "a lost reply is not a lost record, and not two records");
    stage.delete("faults");
}

async fn fan_out(api: &impl StreamApi, stage: &StreamFixture) {
    stage.create("fan", 1);
    let name = StreamName::from("fan");
    let shard = ShardId::from_index(0);
    let summary: StreamSummary = api.describe(&name).await.unwrap();
    fails(api.describe_consumer(&summary, "app").await, Fault::Missing, "app");
    let registered = api.register_consumer(&summary, "app").await.unwrap();
    fails(api.register_consumer(&summary, "app").await, Fault::Busy, "RegisterStreamConsumer");
    let consumer = api.describe_consumer(&summary, "app").await.unwrap();
    assert_eq!((&consumer.arn, consumer.active), (&registered.arn, true));

    let first = api.put_record(&name, &entry("k", "a"), None).await.unwrap();
    api.put_record(&name, &entry("k", "b"), None).await.unwrap();
    let mut events =
        api.subscribe(&consumer, &shard, ReadFrom::After(first.sequence)).await.unwrap();
    let event = next(&mut events).await.unwrap().unwrap();
    let data: Vec<_> = event.records.iter().map(|record| &record.data[..]).collect();
    assert_eq!(data, [b"b"]);
    assert_eq!(event.continuation, Some(event.records[0].sequence));
    let again = api.subscribe(&consumer, &shard, ReadFrom::TrimHorizon).await.map(|_| ());
    fails(again, Fault::Busy, "SubscribeToShard on");

    stage.split("fan", shard.as_str());
    let end = loop {
        let event = next(&mut events).await.unwrap().unwrap();
        if event.continuation.is_none() {
            break event;
        }
    };
    assert_eq!((end.children.len(), end.records.len()), (2, 0));
    assert!(next(&mut events).await.is_none());
    drop(events);

    let open = &end.children[0].id;
    let mut events = api.subscribe(&consumer, open, ReadFrom::TrimHorizon).await.unwrap();
    api.deregister_consumer(&consumer).await.unwrap();
    let failed = loop {
        match next(&mut events).await.expect("an error comes before the end") {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(failed.fault, Fault::Missing, "{failed}");
    assert!(next(&mut events).await.is_none(), "after an error it is over");
    fails(api.describe_consumer(&summary, "app").await, Fault::Missing, "app");

    let mut consumers = Vec::new();
    for number in 0..20 {
        let name = format!("app-{number}");
        consumers.push(api.register_consumer(&summary, &name).await.unwrap());
    }
    let full = api.register_consumer(&summary, "app").await;
    fails(full, Fault::LimitReached, "RegisterStreamConsumer");
    stage.strike(Operation::RegisterStreamConsumer, FaultEffect::Throttle);
    fails(api.register_consumer(&summary, "app").await, Fault::Throttled, "RegisterStreamConsumer");
    let last = &consumers[19];
    let by_arn = api.describe_consumer(&summary, &last.arn).await.unwrap();
    assert_eq!((by_arn.name.as_str(), &by_arn.arn), ("app-19", &last.arn));
    for consumer in &consumers {
        api.deregister_consumer(consumer).await.unwrap();
    }
    stage.delete("fan");
}

async fn next(events: &mut Subscription) -> Option<Result<SubscriptionEvent, StreamError>> {
    let next = poll_fn(|context| events.as_mut().poll_next(context));
    tokio::time::timeout(std::time::Duration::from_secs(20), next).await.expect("an event comes")
}

fn entry(key: &str, data: &'static str) -> PutEntry {
    PutEntry { key: key.into(), hash: None, data: data.into() }
}

fn text(fetched: &FetchedRecords) -> String {
    fetched.records.iter().map(|record| std::str::from_utf8(&record.data).unwrap()).collect()
}

fn fails<T: Debug>(outcome: Result<T, StreamError>, fault: Fault, named: &str) {
    let error = outcome.unwrap_err();
    assert_eq!(error.fault, fault, "{error}");
    assert!(error.to_string().contains(named), "{error} names {named}");
}
