//! Registering, describing and deregistering fan-out consumers.

use crate::stage::{EngineFixture, refused};
use anabranch_local::op::{
    ConsumerTarget, StreamTarget, delete_stream, deregister_stream_consumer,
    describe_stream_consumer, describe_stream_summary, list_stream_consumers,
};
use anabranch_local::{ApiError, EngineOptions, ErrorKind, Status};

fn by_arn(arn: &str) -> ConsumerTarget {
    ConsumerTarget { consumer_arn: Some(arn.to_owned()), ..Default::default() }
}

fn status(stage: &EngineFixture, consumer: ConsumerTarget) -> Result<Status, ApiError> {
    let request = describe_stream_consumer::Request { consumer };
    let reply = stage.engine.describe_stream_consumer(&request)?;
    assert_eq!(reply.consumer_description.stream_arn, Some(stage.arn()));
    Ok(reply.consumer_description.consumer_status)
}

fn deregister(stage: &EngineFixture, arn: &str) -> Result<(), ApiError> {
    let consumer = by_arn(arn);
    stage.engine.deregister_stream_consumer(&deregister_stream_consumer::Request { consumer })
}

#[test]
fn a_consumer_passes_through_its_states_by_the_clock() {
    let stage = EngineFixture::new(EngineOptions::default());
    stage.create("s", 1);
    refused(stage.register("app"), ErrorKind::ResourceInUse, "CREATING");
    stage.advance(50);
    let arn = stage.register("app").unwrap();
    assert!(arn.starts_with(&format!("{}/consumer/app:1700000000", stage.arn())));
    refused(stage.register("app"), ErrorKind::ResourceInUse, "already exists");
    assert_eq!(status(&stage, by_arn(&arn)).unwrap(), Status::Creating);
    let early = stage.subscribe(&arn, 0, "LATEST", None);
    refused(early, ErrorKind::ResourceInUse, "not ACTIVE, instead in state CREATING");
    stage.advance(50);
    let by_name = ConsumerTarget {
        consumer_arn: None,
        stream_arn: Some(stage.arn()),
        consumer_name: Some("app".to_owned()),
    };
    assert_eq!(status(&stage, by_name).unwrap(), Status::Active);
    deregister(&stage, &arn).unwrap();
    assert_eq!(status(&stage, by_arn(&arn)).unwrap(), Status::Deleting);
    stage.advance(50);
    refused(status(&stage, by_arn(&arn)), ErrorKind::ResourceNotFound, "not found");
    refused(deregister(&stage, &arn), ErrorKind::ResourceNotFound, "not found");
    let nobody = ConsumerTarget::default();
    refused(status(&stage, nobody), ErrorKind::InvalidArgument, "ConsumerARN");
}

#[test]
fn twenty_consumers_are_listed_in_pages_and_one_more_is_refused() {
    let stage = EngineFixture::with_stream(1);
    (0..20).for_each(|i| drop(stage.register(&format!("c{i:02}")).unwrap()));
    refused(stage.register("more"), ErrorKind::LimitExceeded, "limit of 20 consumers");
    let page = |next_token: Option<String>| {
        let request = list_stream_consumers::Request {
            stream: StreamTarget::by_arn(&stage.arn()),
            max_results: Some(12),
            next_token,
            ..Default::default()
        };
        stage.engine.list_stream_consumers(&request).unwrap()
    };
    let first = page(None);
    let second = page(first.next_token);
    assert_eq!((first.consumers.len(), second.consumers.len()), (12, 8));
    assert_eq!((second.consumers[0].consumer_name.as_str(), second.next_token), ("c12", None));
    let request = describe_stream_summary::Request { stream: StreamTarget::named("s") };
    let summary = stage.engine.describe_stream_summary(&request).unwrap();
    assert_eq!(summary.stream_description_summary.consumer_count, 20);
}

#[test]
fn a_stream_with_consumers_is_deleted_only_when_told_so() {
    let stage = EngineFixture::with_stream(1);
    stage.register("app").unwrap();
    let delete = |enforce| {
        let stream = StreamTarget::named("s");
        let enforce_consumer_deletion = Some(enforce);
        let request = delete_stream::Request { stream, enforce_consumer_deletion };
        stage.engine.delete_stream(&request)
    };
    refused(delete(false), ErrorKind::ResourceInUse, "registered consumers");
    delete(true).unwrap();
    refused(stage.list(None, None), ErrorKind::ResourceNotFound, "not found");
}
