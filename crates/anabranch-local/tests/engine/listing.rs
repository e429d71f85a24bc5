//! `ListShards`: filters, pages and their tokens.

use crate::stage::{EngineFixture, HOUR, NOW, id, refused};
use anabranch_local::ErrorKind;
use anabranch_local::op::{StreamTarget, list_shards};

/// Creates a stream whose shard 0 is split after one hour and its upper child (2) after two. Three
/// hours have passed when it returns.
fn history() -> EngineFixture {
    let stage = EngineFixture::with_stream(1);
    stage.advance(HOUR);
    stage.split(0, 1 << 127).unwrap();
    stage.advance(HOUR);
    stage.split(2, 3 << 126).unwrap();
    stage.advance(HOUR);
    stage
}

#[test]
fn every_shard_filter_gives_its_shards() {
    let stage = history();
    let check = |kind: &str, at: Option<u64>, expected: &[u32]| {
        let shards = stage.list(Some(kind), at).unwrap();
        let ids: Vec<String> = shards.into_iter().map(|shard| shard.shard_id).collect();
        let expected: Vec<String> = expected.iter().map(|index| id(*index)).collect();
        assert_eq!(ids, expected, "{kind} {at:?}");
    };
    check("AT_TRIM_HORIZON", None, &[0]);
    check("FROM_TRIM_HORIZON", None, &[0, 1, 2, 3, 4]);
    check("AT_LATEST", None, &[1, 3, 4]);
    check("AFTER_SHARD_ID", None, &[1, 2, 3, 4]);
    check("AT_TIMESTAMP", Some(NOW), &[0]);
    check("AT_TIMESTAMP", Some(NOW + HOUR - 1), &[0]);
    check("AT_TIMESTAMP", Some(NOW + HOUR), &[1, 2]);
    check("AT_TIMESTAMP", Some(NOW + 2 * HOUR), &[1, 3, 4]);
    check("FROM_TIMESTAMP", Some(NOW + HOUR), &[1, 2, 3, 4]);
    check("FROM_TIMESTAMP", Some(NOW + 2 * HOUR), &[1, 3, 4]);
    check("FROM_TIMESTAMP", Some(NOW), &[0, 1, 2, 3, 4]);
    refused(stage.list(Some("AT_TIMESTAMP"), None), ErrorKind::InvalidArgument, "Timestamp");
    refused(stage.list(Some("AT_NOON"), None), ErrorKind::Validation, "enum value set");
}

#[test]
fn a_stream_that_is_split_in_its_first_millisecond_still_begins_with_the_parent() {
    let stage = EngineFixture::with_stream(1);
    stage.split(0, 1 << 127).unwrap();
    let ids = |kind: &str| -> Vec<String> {
        stage.list(Some(kind), None).unwrap().into_iter().map(|shard| shard.shard_id).collect()
    };
    assert_eq!(ids("AT_TRIM_HORIZON"), [id(0)]);
    assert_eq!(ids("FROM_TRIM_HORIZON"), [id(0), id(1), id(2)]);
}

#[test]
fn a_closed_shard_is_listed_until_its_records_are_past_retention() {
    let stage = history();
    assert_eq!(stage.shards().len(), 5);
    // Shard 0 was closed two hours ago. In 22 hours and a millisecond it will be past the retention
    // of 24 hours.
    stage.advance(22 * HOUR);
    assert_eq!(stage.shards().len(), 5);
    stage.advance(1);
    let ids: Vec<String> = stage.shards().into_iter().map(|shard| shard.shard_id).collect();
    assert_eq!(ids, [id(1), id(2), id(3), id(4)]);
    assert_eq!(stage.shards()[0].parent_shard_id, Some(id(0)));
    refused(stage.iterator(0, "TRIM_HORIZON"), ErrorKind::ResourceNotFound, "does not exist");
    let at_horizon = stage.list(Some("AT_TRIM_HORIZON"), None).unwrap();
    assert_eq!(at_horizon.len(), 2);
}

#[test]
fn pages_go_on_by_token_until_it_expires() {
    let stage = history();
    let page = |next_token: Option<String>, max: Option<i64>| {
        let stream =
            if next_token.is_some() { StreamTarget::default() } else { StreamTarget::named("s") };
        let request =
            list_shards::Request { stream, next_token, max_results: max, ..Default::default() };
        stage.engine.list_shards(&request)
    };
    let first = page(None, Some(2)).unwrap();
    assert_eq!(first.shards.len(), 2);
    let token = first.next_token.unwrap();
    let second = page(Some(token.clone()), Some(2)).unwrap();
    assert_eq!(second.shards[0].shard_id, id(2));
    let third = page(second.next_token, Some(2)).unwrap();
    assert_eq!((third.shards[0].shard_id.as_str(), third.next_token), (id(4).as_str(), None));

    let both = list_shards::Request {
        stream: StreamTarget::named("s"),
        next_token: Some(token.clone()),
        ..Default::default()
    };
    let result = stage.engine.list_shards(&both);
    refused(result, ErrorKind::InvalidArgument, "NextToken and StreamName cannot");
    refused(page(Some("x".into()), None), ErrorKind::InvalidArgument, "Invalid NextToken");
    refused(
        stage.engine.list_shards(&list_shards::Request::default()),
        ErrorKind::InvalidArgument,
        "Either NextToken or StreamName",
    );
    stage.advance(300_001);
    refused(page(Some(token), None), ErrorKind::ExpiredNextToken, "expired");
}

#[test]
fn a_filter_stays_with_its_token() {
    let stage = history();
    let request = list_shards::Request {
        stream: StreamTarget::named("s"),
        max_results: Some(1),
        shard_filter: Some(list_shards::ShardFilter {
            filter_type: Some("AT_LATEST".into()),
            ..Default::default()
        }),
        ..Default::default()
    };
    let first = stage.engine.list_shards(&request).unwrap();
    let rest = list_shards::Request { next_token: first.next_token, ..Default::default() };
    let rest = stage.engine.list_shards(&rest);
    // This call determines the length of the page, the first call the filter.
    let ids: Vec<String> = rest.unwrap().shards.into_iter().map(|shard| shard.shard_id).collect();
    assert_eq!(ids, [id(3), id(4)]);
}
