//! The AWS SDK for Rust against the server: put, split, merge, read and subscribe.

mod world;

use aws_sdk_kinesis::error::ProvideErrorMetadata;
use aws_sdk_kinesis::primitives::Blob;
use aws_sdk_kinesis::types::{
    ConsumerStatus, PutRecordsRequestEntry, ShardIteratorType, StartingPosition,
    SubscribeToShardEventStream,
};
use std::collections::BTreeMap;
use world::ServerFixture;

#[tokio::test]
async fn records_are_read_in_order_through_a_split_and_a_merge() {
    let world = ServerFixture::start().await;
    world.stream("orders", 1).await;
    let parent = "shardId-000000000000";
    world.put_numbered("orders", 0..100).await;

    let half = (u128::MAX / 2 + 1).to_string();
    world
        .kinesis
        .split_shard()
        .stream_name("orders")
        .shard_to_split(parent)
        .new_starting_hash_key(half)
        .send()
        .await
        .expect("a split");
    world.active("orders").await;
    world.put_numbered("orders", 100..200).await;
    world
        .kinesis
        .merge_shards()
        .stream_name("orders")
        .shard_to_merge("shardId-000000000001")
        .adjacent_shard_to_merge("shardId-000000000002")
        .send()
        .await
        .expect("a merge");
    world.active("orders").await;
    world.put_numbered("orders", 200..300).await;

    // Reads each shard to its end. The last reply names its children.
    let mut seen: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut todo = vec![parent.to_owned()];
    let mut done = Vec::new();
    while let Some(shard) = todo.pop() {
        if done.contains(&shard) {
            continue;
        }
        let (records, children) = world.read("orders", &shard).await;
        for (key, number) in records {
            seen.entry(key).or_default().push(number);
        }
        for child in children {
            assert!(child.parent_shards().contains(&shard), "{child:?}");
            let ready = child.parent_shards().iter().all(|p| *p == shard || done.contains(p));
            if ready {
                todo.push(child.shard_id().to_owned());
            }
        }
        done.push(shard);
    }
    let total: usize = seen.values().map(Vec::len).sum();
    assert_eq!((done.len(), total), (4, 300));
    for (key, numbers) in seen {
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
    }
    world.local.stop().await;
}

#[tokio::test]
async fn a_subscription_delivers_and_ends_with_its_shard() {
    let world = ServerFixture::start().await;
    world.stream("events", 1).await;
    let arn = world.consumer("events", "reader").await;
    world.put_numbered("events", 0..10).await;

    let mut subscription = world
        .kinesis
        .subscribe_to_shard()
        .consumer_arn(&arn)
        .shard_id("shardId-000000000000")
        .starting_position(
            StartingPosition::builder().r#type(ShardIteratorType::TrimHorizon).build().unwrap(),
        )
        .send()
        .await
        .expect("a subscription");
    let mut numbers = Vec::new();
    let mut children = Vec::new();
    let mut split = false;
    while let Some(event) = subscription.event_stream.recv().await.expect("an event") {
        let SubscribeToShardEventStream::SubscribeToShardEvent(event) = event else {
            panic!("{event:?}");
        };
        numbers.extend(event.records().iter().map(world::number));
        if numbers.len() == 10 && !split {
            split = true;
            world.put_numbered("events", 10..20).await;
            let half = (u128::MAX / 2 + 1).to_string();
            world
                .kinesis
                .split_shard()
                .stream_name("events")
                .shard_to_split("shardId-000000000000")
                .new_starting_hash_key(half)
                .send()
                .await
                .expect("a split");
        }
        children.extend(event.child_shards().iter().map(|c| c.shard_id().to_owned()));
    }
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
    assert_eq!(children, ["shardId-000000000001", "shardId-000000000002"]);
    world.local.stop().await;
}

#[tokio::test]
async fn a_stop_ends_subscriptions_at_once() {
    let world = ServerFixture::start().await;
    world.stream("events", 1).await;
    let arn = world.consumer("events", "reader").await;
    let mut subscription = world
        .kinesis
        .subscribe_to_shard()
        .consumer_arn(&arn)
        .shard_id("shardId-000000000000")
        .starting_position(
            StartingPosition::builder().r#type(ShardIteratorType::Latest).build().unwrap(),
        )
        .send()
        .await
        .expect("a subscription");
    let stop = tokio::time::timeout(std::time::Duration::from_secs(2), world.local.stop());
    let (stopped, event) = tokio::join!(stop, async {
        loop {
            match subscription.event_stream.recv().await {
                Ok(Some(_)) => {}
                other => break other.map(|_| ()),
            }
        }
    });
    stopped.expect("the stop does not wait for five minutes");
    event.expect("the body ends in order");
}

#[tokio::test]
async fn errors_have_the_types_of_the_service() {
    let world = ServerFixture::start().await;
    world.stream("here", 1).await;
    let missing = world.kinesis.describe_stream_summary().stream_name("absent").send().await;
    let missing = missing.expect_err("no such stream").into_service_error();
    assert!(missing.is_resource_not_found_exception(), "{missing:?}");
    assert_eq!(missing.message(), Some("Stream absent under account 000000000000 not found."));

    let again = world.kinesis.create_stream().stream_name("here").shard_count(1).send().await;
    let again = again.expect_err("it exists").into_service_error();
    assert!(again.is_resource_in_use_exception(), "{again:?}");

    let garbage = world.kinesis.get_records().shard_iterator("garbage").send().await;
    let garbage = garbage.expect_err("no iterator").into_service_error();
    assert!(garbage.is_invalid_argument_exception(), "{garbage:?}");

    let consumer = world
        .kinesis
        .subscribe_to_shard()
        .consumer_arn("arn:aws:kinesis:us-east-1:000000000000:stream/here/consumer/no:1")
        .shard_id("shardId-000000000000")
        .starting_position(
            StartingPosition::builder().r#type(ShardIteratorType::Latest).build().unwrap(),
        )
        .send()
        .await;
    let consumer = consumer.expect_err("no such consumer").into_service_error();
    assert!(consumer.is_resource_not_found_exception(), "{consumer:?}");
    world.local.stop().await;
}

#[tokio::test]
async fn streams_are_named_by_arn_as_well() {
    let world = ServerFixture::start().await;
    world.stream("named", 2).await;
    let summary = world.kinesis.describe_stream_summary().stream_name("named").send().await;
    let summary = summary.expect("a summary").stream_description_summary.expect("a summary");
    let arn = summary.stream_arn();
    let by_arn = world.kinesis.list_shards().stream_arn(arn).send().await.expect("shards");
    assert_eq!(by_arn.shards().len(), 2);
    let age = summary.stream_creation_timestamp().secs() - world.now_secs();
    assert!(age.abs() < 60, "the creation time is off by {age} s");
    world.local.stop().await;
}

#[tokio::test]
async fn a_consumer_is_created_listed_and_removed() {
    let world = ServerFixture::start().await;
    world.stream("fans", 1).await;
    let arn = world.consumer("fans", "one").await;
    let consumer = world.kinesis.describe_stream_consumer().consumer_arn(&arn).send().await;
    let consumer = consumer.expect("a consumer").consumer_description.expect("a description");
    assert_eq!(*consumer.consumer_status(), ConsumerStatus::Active);
    world.kinesis.deregister_stream_consumer().consumer_arn(&arn).send().await.expect("gone");
    world.local.stop().await;
}

#[tokio::test]
async fn a_record_may_have_exactly_the_maximum_with_its_key_and_not_a_byte_more() {
    let world = ServerFixture::start().await;
    for (name, kib) in [("one", 1_024), ("ten", 10_240)] {
        let create = world.kinesis.create_stream().stream_name(name).shard_count(1);
        create.max_record_size_in_kib(kib).send().await.expect("a stream");
        world.active(name).await;
        let most = usize::try_from(kib).expect("a size") * 1024;
        let key = "ключ";
        let data = |bytes: usize| Blob::new(vec![7; bytes]);
        let put = |bytes| {
            let put = world.kinesis.put_record().stream_name(name).partition_key(key);
            put.data(data(bytes)).send()
        };
        let put_many = |bytes| {
            let entry = PutRecordsRequestEntry::builder().partition_key(key).data(data(bytes));
            let entry = entry.build().expect("an entry");
            world.kinesis.put_records().stream_name(name).records(entry).send()
        };
        put(most - key.len()).await.expect("exactly the maximum");
        let reply = put_many(most - key.len()).await.expect("exactly the maximum");
        assert_eq!(reply.failed_record_count(), Some(0));
        let refused = put(most - key.len() + 1).await.expect_err("a byte more");
        assert!(refused.into_service_error().is_invalid_argument_exception(), "{name}");
        let refused = put_many(most - key.len() + 1).await.expect_err("a byte more");
        assert!(refused.into_service_error().is_invalid_argument_exception(), "{name}");
        let refused = put(most + 1).await.expect_err("data alone");
        assert_eq!(refused.into_service_error().code(), Some("ValidationException"));
        let (keys, _) = world.read_keys(name, "shardId-000000000000").await;
        assert!(!keys.is_empty() && keys.iter().all(|read| read == key), "{keys:?}");
    }
    world.local.stop().await;
}
