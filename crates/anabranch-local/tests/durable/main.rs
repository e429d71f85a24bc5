//! An engine that is closed or killed and opened again has the same state as before.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

mod world;
mod history;

use anabranch_local::op::put_records::EntryOutcome;
use anabranch_local::op::{
    create_stream, delete_stream, get_records, increase_stream_retention_period, merge_shards,
    register_stream_consumer, split_shard,
};
use anabranch_local::persist::DEFAULT_FILE_BYTES;
use anabranch_local::{Clock, ErrorKind};
use serde_json::json;
use tempfile::TempDir;
use world::{
    DurableFixture, HOUR_MS, START_MS, contents, highest_number, open_with, portrait, request,
    shard_name,
};

#[test]
fn streams_shards_consumers_tags_and_records_come_back() {
    let mut world = DurableFixture::new();
    let engine = world.engine();
    engine
        .create_stream(&request::<create_stream::Request>(
            json!({"StreamName": "a", "ShardCount": 2, "Tags": {"team": "river"}}),
        ))
        .unwrap();
    engine.create_stream(&request(json!({"StreamName": "gone", "ShardCount": 1}))).unwrap();
    world.clock.advance(1_000);
    let keys = ["k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8"];
    world.put("a", &keys, 50).unwrap();
    let half = (u128::MAX / 4).to_string();
    engine
        .split_shard(&request::<split_shard::Request>(json!({
            "StreamName": "a", "ShardToSplit": shard_name(0), "NewStartingHashKey": half,
        })))
        .unwrap();
    world.clock.advance(1_000);
    world.put("a", &keys, 60).unwrap();
    engine
        .merge_shards(&request::<merge_shards::Request>(json!({
            "StreamName": "a", "ShardToMerge": shard_name(3), "AdjacentShardToMerge": shard_name(1),
        })))
        .unwrap();
    world.clock.advance(1_000);
    world.put("a", &keys, 70).unwrap();
    let engine = world.engine();
    let described = engine.describe_stream(&request(json!({"StreamName": "a"}))).unwrap();
    let arn = described.stream_description.stream_arn;
    engine
        .register_stream_consumer(&request::<register_stream_consumer::Request>(
            json!({"StreamARN": arn, "ConsumerName": "c"}),
        ))
        .unwrap();
    engine
        .increase_stream_retention_period(&request::<increase_stream_retention_period::Request>(
            json!({"StreamName": "a", "RetentionPeriodHours": 48}),
        ))
        .unwrap();
    engine
        .delete_stream(&request::<delete_stream::Request>(json!({"StreamName": "gone"})))
        .unwrap();
    let half_read = engine
        .get_shard_iterator(&request(json!({
            "StreamName": "a", "ShardId": shard_name(4), "ShardIteratorType": "LATEST",
        })))
        .unwrap()
        .shard_iterator;

    let before = portrait(engine);
    assert_eq!(before.as_array().unwrap().len(), 2, "the deleted stream is still DELETING");
    assert_eq!(before[0][4].as_array().unwrap().len(), 5);
    world.reopen();
    assert_eq!(portrait(world.engine()), before);
    let placed = world.put("a", &keys, 80).unwrap();
    let highest = highest_number(&before);
    for outcome in placed {
        let EntryOutcome::Placed { sequence, shard } = outcome else { panic!("{outcome:?}") };
        assert!(shard != 4 || sequence.to_string() > highest, "{sequence} is not new");
    }
    let refused = world.engine().get_records(&get_records::Request {
        shard_iterator: Some(half_read.into()),
        ..Default::default()
    });
    assert_eq!(
        refused.unwrap_err().kind,
        ErrorKind::ExpiredIterator,
        "it is of an earlier process"
    );
    let before = portrait(world.engine());
    world.reopen();
    assert_eq!(portrait(world.engine()), before);
}

#[test]
fn a_shard_that_closes_after_an_opening_still_ends() {
    let mut world = DurableFixture::new();
    world.engine().create_stream(&request(json!({"StreamName": "a", "ShardCount": 1}))).unwrap();
    world.clock.advance(1_000);
    world.put("a", &["k"], 10).unwrap();
    world.reopen();
    let half = (u128::MAX / 2).to_string();
    world
        .engine()
        .split_shard(&request(json!({
            "StreamName": "a", "ShardToSplit": shard_name(0), "NewStartingHashKey": half,
        })))
        .unwrap();
    let contents = contents(world.engine(), &json!("a"), &json!(shard_name(0)));
    assert_eq!(contents[1], json!(false), "no next iterator: {contents}");
    assert_eq!(contents[2].as_array().unwrap().len(), 2);
}

#[test]
fn numbers_that_were_lost_with_the_power_are_not_given_again() {
    let mut world = DurableFixture::new();
    world.engine().create_stream(&request(json!({"StreamName": "a", "ShardCount": 1}))).unwrap();
    world.clock.advance(1_000);
    world.put("a", &["kept"], 10).unwrap();
    let log = world.dir.path().join("journal-0000000001.log");
    let length = std::fs::metadata(&log).unwrap().len();
    world.put("a", &["lost"; 200], 1).unwrap();
    let seen = highest_number(&portrait(world.engine()));
    world.engine = None;
    std::fs::File::options().write(true).open(&log).unwrap().set_len(length).unwrap();
    world.reopen();
    world.put("a", &["new"], 10).unwrap();
    assert!(highest_number(&portrait(world.engine())) > seen);
}

#[test]
fn disk_use_follows_the_records_that_are_within_retention() {
    let mut world = DurableFixture::new();
    world.engine().create_stream(&request(json!({"StreamName": "long", "ShardCount": 1}))).unwrap();
    world
        .engine()
        .create_stream(&request(json!({"StreamName": "short", "ShardCount": 1})))
        .unwrap();
    world.clock.advance(1_000);
    world
        .engine()
        .increase_stream_retention_period(&request(
            json!({"StreamName": "long", "RetentionPeriodHours": 8_760}),
        ))
        .unwrap();
    for day in 0..100 {
        world.put("long", &["one a day"], 100).unwrap();
        for _ in 0..20 {
            world.put("short", &["many"], 1_000).unwrap();
            world.settle();
        }
        world.clock.advance(25 * HOUR_MS);
        world.settle();
        if day % 10 == 0 {
            world.reopen();
        }
    }
    // 2 MB were written; 100 records of 100 bytes are within retention.
    let bytes = world.disk_bytes();
    assert!(bytes < 60_000, "{bytes} bytes on disk");
    let before = portrait(world.engine());
    assert_eq!(before[0][4][0][0].as_array().unwrap().len(), 100);
    world.reopen();
    assert_eq!(portrait(world.engine()), before);
}

#[test]
fn three_megabytes_of_records_cost_less_than_six_of_journal() {
    let (dir, clock) = (TempDir::new().unwrap(), Clock::manual(START_MS));
    let engine = open_with(dir.path(), &clock, DEFAULT_FILE_BYTES);
    engine.create_stream(&request(json!({"StreamName": "a", "ShardCount": 8}))).unwrap();
    clock.advance(1_000);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let world = DurableFixture { dir, clock, engine: Some(engine), runtime };
    let keys: Vec<_> = (0..500).map(|key| format!("key-{key:04}")).collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    for _ in 0..60 {
        world.put("a", &keys, 100).unwrap();
        world.settle();
    }
    let in_batches = world.disk_bytes();
    for key in keys.iter().cycle().take(3_000) {
        world.put("a", &[key], 100).unwrap();
    }
    let one_by_one = world.disk_bytes() - in_batches;
    println!("30,000 x 100 bytes: {in_batches} in batches, {} one by one", one_by_one * 10);
    assert!(in_batches < 6_000_000 && one_by_one * 10 < 6_000_000);
    assert!(in_batches > 3_000_000, "not all of it is there");
}

#[test]
fn a_longer_retention_does_not_bring_back_what_was_past_the_old_one() {
    let mut world = DurableFixture::new();
    world.engine().create_stream(&request(json!({"StreamName": "a", "ShardCount": 1}))).unwrap();
    world.clock.advance(1_000);
    world.put("a", &["old"], 10).unwrap();
    world.clock.advance(25 * HOUR_MS);
    world.put("a", &["new"], 10).unwrap();
    let longer = json!({"StreamName": "a", "RetentionPeriodHours": 100});
    world.engine().increase_stream_retention_period(&request(longer)).unwrap();
    for _ in 0..3 {
        let contents = contents(world.engine(), &json!("a"), &json!(shard_name(0)));
        let keys: Vec<_> = contents[0].as_array().unwrap().iter().map(|r| r[2].clone()).collect();
        assert_eq!(keys, ["new"]);
        world.reopen();
    }
}

#[test]
fn a_shard_that_a_longer_retention_came_too_late_for_stays_gone() {
    let mut world = DurableFixture::new();
    world.engine().create_stream(&request(json!({"StreamName": "a", "ShardCount": 1}))).unwrap();
    world.clock.advance(1_000);
    let half = (u128::MAX / 2).to_string();
    let split =
        json!({"StreamName": "a", "ShardToSplit": shard_name(0), "NewStartingHashKey": half});
    world.engine().split_shard(&request(split)).unwrap();
    world.clock.advance(25 * HOUR_MS);
    let longer = json!({"StreamName": "a", "RetentionPeriodHours": 100});
    world.engine().increase_stream_retention_period(&request(longer)).unwrap();
    // Enough for a new file. Only its snapshot is then left of the changes above.
    for _ in 0..20 {
        let tags = json!({"StreamName": "a", "Tags": {"tag": "v".repeat(200)}});
        world.engine().add_tags_to_stream(&request(tags)).unwrap();
        world.settle();
    }
    assert!(!world.dir.path().join("journal-0000000001.log").exists());
    let before = portrait(world.engine());
    assert_eq!(before[0][1]["Shards"].as_array().unwrap().len(), 2);
    world.reopen();
    assert_eq!(portrait(world.engine()), before);
}

#[test]
fn time_never_goes_back_over_a_reopening() {
    let mut world = DurableFixture::new();
    world.engine().create_stream(&request(json!({"StreamName": "a", "ShardCount": 1}))).unwrap();
    world.clock.advance(10 * HOUR_MS);
    world.put("a", &["late"], 10).unwrap();
    let before = portrait(world.engine());
    // The machine restarts with a clock that was set back.
    world.clock = Clock::manual(START_MS - HOUR_MS);
    world.reopen();
    assert_eq!(world.engine().clock().now_ms(), START_MS + 10 * HOUR_MS);
    assert_eq!(portrait(world.engine()), before, "the stream is not CREATING again");
}
