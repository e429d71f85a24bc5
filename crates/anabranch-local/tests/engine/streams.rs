//! Creating, describing and deleting streams, and their transitional states.

use crate::stage::{EngineFixture, id, refused};
use anabranch_local::op::{
    StreamModeDetails, StreamTarget, create_stream, delete_stream, describe_limits,
    describe_stream, describe_stream_summary, list_shards, list_streams,
};
use anabranch_local::{EngineOptions, ErrorKind, Status};

fn describe(stage: &EngineFixture) -> describe_stream::StreamDescription {
    let stream = StreamTarget::named("s");
    let request = describe_stream::Request { stream, ..Default::default() };
    stage.engine.describe_stream(&request).unwrap().stream_description
}

fn delete(stage: &EngineFixture) -> Result<(), anabranch_local::ApiError> {
    let stream = StreamTarget::named("s");
    stage.engine.delete_stream(&delete_stream::Request { stream, ..Default::default() })
}

#[test]
fn a_stream_passes_through_its_states_by_the_clock() {
    let stage = EngineFixture::new(EngineOptions::default());
    stage.create("s", 2);
    assert_eq!(describe(&stage).stream_status, Status::Creating);
    assert!(describe(&stage).shards.is_empty());
    refused(stage.try_put("k", None), ErrorKind::ResourceNotFound, "Stream s under account");
    refused(stage.list(None, None), ErrorKind::ResourceInUse, "instead in state CREATING");
    refused(stage.split(0, 1 << 100), ErrorKind::ResourceInUse, "instead in state CREATING");
    refused(stage.iterator(0, "LATEST"), ErrorKind::ResourceNotFound, "does not exist");

    stage.advance(50);
    assert_eq!(describe(&stage).stream_status, Status::Active);
    stage.split(0, 1 << 100).unwrap();
    assert_eq!(describe(&stage).stream_status, Status::Updating);
    stage.try_put("k", None).expect("a stream takes records while it is UPDATING");
    refused(stage.split(1, u128::MAX - 9), ErrorKind::ResourceInUse, "instead in state UPDATING");

    stage.advance(50);
    let iterator = stage.iterator(1, "TRIM_HORIZON").unwrap();
    delete(&stage).unwrap();
    assert_eq!(describe(&stage).stream_status, Status::Deleting);
    refused(stage.try_put("k", None), ErrorKind::ResourceNotFound, "Stream s under account");
    refused(stage.get(&iterator), ErrorKind::ResourceNotFound, "Stream s under account");
    delete(&stage).expect("deleting twice is no error");

    stage.advance(50);
    refused(delete(&stage), ErrorKind::ResourceNotFound, "Stream s under account 000000000000");
    stage.create("s", 1);
    stage.advance(50);
    assert_eq!(stage.shards().len(), 1);
    refused(stage.get(&iterator), ErrorKind::ResourceNotFound, "does not exist");
}

#[test]
fn describe_stream_gives_pages() {
    let stage = EngineFixture::with_stream(5);
    let page = |after: Option<u32>, limit| {
        let request = describe_stream::Request {
            stream: StreamTarget::named("s"),
            limit: Some(limit),
            exclusive_start_shard_id: after.map(id),
        };
        let reply = stage.engine.describe_stream(&request).unwrap().stream_description;
        let ids: Vec<String> = reply.shards.into_iter().map(|shard| shard.shard_id).collect();
        (ids, reply.has_more_shards)
    };
    assert_eq!(page(None, 2), (vec![id(0), id(1)], true));
    assert_eq!(page(Some(1), 3), (vec![id(2), id(3), id(4)], false));
}

#[test]
fn streams_are_named_by_name_or_arn_everywhere() {
    let stage = EngineFixture::with_stream(1);
    let arn = describe(&stage).stream_arn;
    assert_eq!(arn, stage.arn());
    let by_arn = StreamTarget::by_arn(&arn);
    let summary = describe_stream_summary::Request { stream: by_arn.clone() };
    let summary = stage.engine.describe_stream_summary(&summary).unwrap();
    assert_eq!(summary.stream_description_summary.stream_name, "s");
    let list = list_shards::Request { stream: by_arn, ..Default::default() };
    assert_eq!(stage.engine.list_shards(&list).unwrap().shards.len(), 1);

    let check = |stream: StreamTarget, kind, words| {
        let request = describe_stream_summary::Request { stream };
        refused(stage.engine.describe_stream_summary(&request), kind, words);
    };
    check(StreamTarget::default(), ErrorKind::InvalidArgument, "StreamName or StreamARN");
    check(StreamTarget::named("no spaces"), ErrorKind::Validation, "[a-zA-Z0-9_.-]+");
    check(StreamTarget::by_arn("x"), ErrorKind::Validation, "'streamARN'");
    let other = arn.replace("000000000000", "111111111111");
    check(StreamTarget::by_arn(&other), ErrorKind::ResourceNotFound, "account 111111111111");
}

#[test]
fn an_on_demand_stream_has_four_shards_and_names_no_count() {
    let stage = EngineFixture::new(EngineOptions::instant());
    let mut request = create_stream::Request {
        stream_name: Some("s".to_owned()),
        stream_mode_details: Some(StreamModeDetails { stream_mode: "ON_DEMAND".to_owned() }),
        ..Default::default()
    };
    stage.engine.create_stream(&request).unwrap();
    assert_eq!(stage.shards().len(), 4);
    assert_eq!(describe(&stage).stream_mode_details.stream_mode, "ON_DEMAND");
    refused(stage.split(0, 1 << 100), ErrorKind::Validation, "provisioned capacity mode");
    request.stream_name = Some("t".to_owned());
    request.shard_count = Some(1);
    refused(stage.engine.create_stream(&request), ErrorKind::Validation, "ShardCount");
}

#[test]
fn wrong_creations_are_refused_in_the_services_words() {
    let stage = EngineFixture::new(EngineOptions { shard_limit: 3, ..EngineOptions::instant() });
    let check = |name: Option<&str>, count, kind, words| {
        let request = create_stream::Request {
            stream_name: name.map(str::to_owned),
            shard_count: count,
            ..Default::default()
        };
        refused(stage.engine.create_stream(&request), kind, words);
    };
    check(None, Some(1), ErrorKind::Validation, "Value null at 'streamName'");
    check(Some("a b"), Some(1), ErrorKind::Validation, "[a-zA-Z0-9_.-]+");
    check(Some("s"), Some(0), ErrorKind::Validation, "greater than or equal to 1");
    check(Some("s"), None, ErrorKind::Validation, "ShardCount");
    check(Some("s"), Some(4), ErrorKind::LimitExceeded, "Number of additional shards");
    stage.create("s", 3);
    check(Some("s"), Some(1), ErrorKind::ResourceInUse, "already exists");
    check(Some("t"), Some(1), ErrorKind::LimitExceeded, "Current shard count for the account: 3");
    let limits = stage.engine.describe_limits(&describe_limits::Request {}).unwrap();
    assert_eq!((limits.shard_limit, limits.open_shard_count), (3, 3));
}

#[test]
fn list_streams_gives_pages_with_a_token() {
    let stage = EngineFixture::new(EngineOptions::instant());
    for name in ["a", "b", "c"] {
        stage.create(name, 1);
    }
    let list = |request: list_streams::Request| stage.engine.list_streams(&request).unwrap();
    let first = list(list_streams::Request { limit: Some(2), ..Default::default() });
    assert_eq!((first.stream_names, first.has_more_streams), (vec!["a".into(), "b".into()], true));
    let next_token = first.next_token;
    assert!(next_token.is_some());
    let second = list(list_streams::Request { next_token, ..Default::default() });
    assert_eq!((second.stream_names, second.next_token), (vec!["c".to_owned()], None));
    let after = Some("a".to_owned());
    let rest = list_streams::Request { exclusive_start_stream_name: after, ..Default::default() };
    assert_eq!(list(rest).stream_names, ["b", "c"]);
}
