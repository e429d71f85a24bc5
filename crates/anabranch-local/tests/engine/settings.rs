//! Retention, mode, encryption, monitoring and tags.

use crate::stage::{EngineFixture, refused};
use anabranch_local::op::{
    StreamModeDetails, StreamTarget, add_tags_to_stream, decrease_stream_retention_period,
    describe_stream_summary, disable_enhanced_monitoring, enable_enhanced_monitoring,
    increase_stream_retention_period, list_tags_for_resource, list_tags_for_stream,
    remove_tags_from_stream, start_stream_encryption, stop_stream_encryption, tag_resource,
    untag_resource, update_max_record_size, update_stream_mode,
};
use anabranch_local::{ApiError, EngineOptions, ErrorKind, Status};
use std::collections::BTreeMap;

fn summary(stage: &EngineFixture) -> describe_stream_summary::StreamSummary {
    let request = describe_stream_summary::Request { stream: StreamTarget::named("s") };
    stage.engine.describe_stream_summary(&request).unwrap().stream_description_summary
}

#[test]
fn retention_moves_within_its_bounds() {
    let stage = EngineFixture::with_stream(1);
    let stream = || StreamTarget::named("s");
    let increase = |hours| {
        let retention_period_hours = Some(hours);
        let request =
            increase_stream_retention_period::Request { stream: stream(), retention_period_hours };
        stage.engine.increase_stream_retention_period(&request)
    };
    let decrease = |hours| {
        let retention_period_hours = Some(hours);
        let request =
            decrease_stream_retention_period::Request { stream: stream(), retention_period_hours };
        stage.engine.decrease_stream_retention_period(&request)
    };
    increase(48).unwrap();
    assert_eq!(summary(&stage).retention_period_hours, 48);
    let invalid = ErrorKind::InvalidArgument;
    refused(increase(47), invalid, "Use DecreaseRetentionPeriod API.");
    refused(decrease(49), invalid, "Use IncreaseRetentionPeriod API.");
    refused(decrease(23), invalid, "Minimum allowed retention period is 24 hours.");
    refused(increase(8_761), invalid, "Maximum allowed retention period is 8760 hours.");
    decrease(24).unwrap();
    assert_eq!(summary(&stage).retention_period_hours, 24);
}

#[test]
fn mode_encryption_and_record_maximum_pass_through_updating() {
    let stage =
        EngineFixture::new(EngineOptions { update_delay_ms: 50, ..EngineOptions::instant() });
    stage.create("s", 1);
    let stream = || StreamTarget::by_arn(&stage.arn());
    let mode = |mode: &str| {
        let stream_mode_details = Some(StreamModeDetails { stream_mode: mode.to_owned() });
        let request = update_stream_mode::Request { stream: stream(), stream_mode_details };
        stage.engine.update_stream_mode(&request)
    };
    let encrypt = |kind: &str| {
        stage.engine.start_stream_encryption(&start_stream_encryption::Request {
            stream: stream(),
            encryption_type: Some(kind.to_owned()),
            key_id: Some("alias/aws/kinesis".to_owned()),
        })
    };
    let settle = || {
        assert_eq!(summary(&stage).stream_status, Status::Updating);
        stage.advance(50);
        assert_eq!(summary(&stage).stream_status, Status::Active);
    };
    mode("ON_DEMAND").unwrap();
    refused(encrypt("KMS"), ErrorKind::ResourceInUse, "not ACTIVE, instead in state UPDATING");
    settle();
    assert_eq!(summary(&stage).stream_mode_details.stream_mode, "ON_DEMAND");
    refused(mode("SOMETIMES"), ErrorKind::Validation, "enum value set");

    encrypt("KMS").unwrap();
    settle();
    assert_eq!(summary(&stage).encryption_type, "KMS");
    assert_eq!(summary(&stage).key_id.as_deref(), Some("alias/aws/kinesis"));
    refused(encrypt("NONE"), ErrorKind::InvalidArgument, "KMS");
    let stop = stop_stream_encryption::Request {
        stream: stream(),
        encryption_type: Some("KMS".to_owned()),
        key_id: Some("alias/aws/kinesis".to_owned()),
    };
    stage.engine.stop_stream_encryption(&stop).unwrap();
    settle();
    assert_eq!(summary(&stage).encryption_type, "NONE");

    let largest = |kib| {
        let max_record_size_in_kib = Some(kib);
        let request = update_max_record_size::Request { stream: stream(), max_record_size_in_kib };
        stage.engine.update_max_record_size(&request)
    };
    for wrong in [1_023, 10_241] {
        refused(largest(wrong), ErrorKind::Validation, "'maxRecordSizeInKiB'");
    }
    largest(2_048).unwrap();
    settle();
    assert_eq!(summary(&stage).max_record_size_in_kib, 2_048);
}

#[test]
fn monitoring_is_kept_and_shown() {
    let stage = EngineFixture::with_stream(1);
    let metrics = |names: &[&str]| enable_enhanced_monitoring::Request {
        stream: StreamTarget::named("s"),
        shard_level_metrics: Some(names.iter().map(|name| (*name).to_owned()).collect()),
    };
    let all = stage.engine.enable_enhanced_monitoring(&metrics(&["ALL"])).unwrap();
    assert_eq!(all.desired_shard_level_metrics.len(), 7);
    let less: Result<disable_enhanced_monitoring::Reply, ApiError> =
        stage.engine.disable_enhanced_monitoring(&metrics(&["IncomingBytes"]));
    let less = less.unwrap();
    assert_eq!(less.current_shard_level_metrics.len(), 7);
    assert_eq!(less.desired_shard_level_metrics.len(), 6);
    assert_eq!(summary(&stage).enhanced_monitoring[0].shard_level_metrics.len(), 6);
    let wrong = stage.engine.enable_enhanced_monitoring(&metrics(&["Mood"]));
    refused(wrong, ErrorKind::Validation, "enum value set");
}

fn tags(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn stream_tags_are_set_listed_in_pages_and_removed() {
    let stage = EngineFixture::with_stream(1);
    let stream = || StreamTarget::named("s");
    let add = |tags: BTreeMap<String, String>| {
        let request = add_tags_to_stream::Request { stream: stream(), tags: Some(tags) };
        stage.engine.add_tags_to_stream(&request)
    };
    let list = |after: Option<&str>, limit| {
        let request = list_tags_for_stream::Request {
            stream: stream(),
            exclusive_start_tag_key: after.map(str::to_owned),
            limit,
        };
        let reply = stage.engine.list_tags_for_stream(&request).unwrap();
        let keys: Vec<String> = reply.tags.into_iter().map(|tag| tag.key).collect();
        (keys.concat(), reply.has_more_tags)
    };
    add(tags(&[("a", "1"), ("b", "2"), ("c", "")])).unwrap();
    add(tags(&[("a", "3")])).unwrap();
    assert_eq!(list(None, Some(2)), ("ab".to_owned(), true));
    assert_eq!(list(Some("b"), None), ("c".to_owned(), false));
    let remove = remove_tags_from_stream::Request {
        stream: stream(),
        tag_keys: Some(vec!["a".to_owned(), "zz".to_owned()]),
    };
    stage.engine.remove_tags_from_stream(&remove).unwrap();
    assert_eq!(list(None, None), ("bc".to_owned(), false));
    let many = (0..49).map(|i| (format!("k{i}"), String::new())).collect();
    refused(add(many), ErrorKind::InvalidArgument, "cannot have more than 50 tags");
    refused(add(tags(&[("", "")])), ErrorKind::Validation, "Map keys must satisfy");
    refused(add(tags(&[("a;b", "")])), ErrorKind::InvalidArgument, "invalid characters");
}

#[test]
fn resource_tags_belong_to_the_stream_or_to_the_consumer() {
    let stage = EngineFixture::with_stream(1);
    let consumer = stage.register("app").unwrap();
    let list = |arn: &str| {
        let request = list_tags_for_resource::Request { resource_arn: Some(arn.to_owned()) };
        let reply = stage.engine.list_tags_for_resource(&request)?;
        Ok::<_, ApiError>(reply.tags.into_iter().map(|tag| tag.key).collect::<String>())
    };
    for (arn, keys) in [(stage.arn(), "xy"), (consumer.clone(), "z")] {
        let given = keys.chars().map(|key| (key.to_string(), "1".to_owned())).collect();
        let resource_arn = Some(arn.clone());
        let request = tag_resource::Request { resource_arn, tags: Some(given) };
        stage.engine.tag_resource(&request).unwrap();
    }
    assert_eq!((list(&stage.arn()).unwrap(), list(&consumer).unwrap()), ("xy".into(), "z".into()));
    let request = untag_resource::Request {
        resource_arn: Some(stage.arn()),
        tag_keys: Some(vec!["x".to_owned(), "z".to_owned()]),
    };
    stage.engine.untag_resource(&request).unwrap();
    assert_eq!((list(&stage.arn()).unwrap(), list(&consumer).unwrap()), ("y".into(), "z".into()));
    refused(list(&consumer.replace("app", "x")), ErrorKind::ResourceNotFound, "not found");
    refused(list("x"), ErrorKind::Validation, "regular expression");
}
