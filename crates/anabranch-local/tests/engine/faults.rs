//! Fault injection.

use crate::stage::{EngineFixture, entry, id, refused};
use anabranch_local::fault::{FaultEffect, FaultRule};
use anabranch_local::op::put_records::{EntryOutcome, Request};
use anabranch_local::op::{Operation, StreamTarget, list_shards, list_streams};
use anabranch_local::{ApiError, EngineOptions, ErrorKind, StreamRef};

fn rule(effect: FaultEffect, operation: Operation) -> FaultRule {
    FaultRule {
        operation: Some(operation),
        stream: None,
        shard: None,
        probability: 1.0,
        skip: 0,
        count: None,
        effect,
    }
}

/// Puts one record to each of two shards. Returns the error of each record that failed.
fn put_two(stage: &EngineFixture) -> Result<Vec<Option<ErrorKind>>, ApiError> {
    let top = u128::MAX.to_string();
    let records = vec![entry("a", Some("0"), b""), entry("b", Some(&top), b"")];
    let reply = stage.engine.put_records(&Request { stream: StreamRef::named("s"), records })?;
    let codes = reply.entries.iter().map(|outcome| match outcome {
        EntryOutcome::Placed { .. } => None,
        EntryOutcome::Failed { code, .. } => Some(*code),
    });
    Ok(codes.collect())
}

fn stored(stage: &EngineFixture) -> usize {
    stage.read_all(0).len() + stage.read_all(1).len()
}

#[test]
fn whole_calls_are_throttled_or_fail_and_do_nothing() {
    for (effect, kind) in [
        (FaultEffect::Throttle, ErrorKind::ProvisionedThroughputExceeded),
        (FaultEffect::InternalError, ErrorKind::InternalFailure),
        (FaultEffect::Deny, ErrorKind::AccessDenied),
        (FaultEffect::UnknownClient, ErrorKind::UnrecognizedClient),
        (FaultEffect::DisableKey, ErrorKind::KmsDisabled),
        (FaultEffect::ExpireToken, ErrorKind::ExpiredToken),
    ] {
        let stage = EngineFixture::with_stream(2);
        let fault = rule(effect, Operation::PutRecords);
        stage.engine.faults().add(FaultRule { skip: 1, count: Some(2), ..fault });
        assert!(put_two(&stage).is_ok());
        refused(put_two(&stage), kind, "");
        refused(put_two(&stage), kind, "");
        assert!(put_two(&stage).is_ok(), "the rule is spent");
        assert_eq!(stored(&stage), 4);
        assert_eq!(stage.engine.faults().list()[0].struck, 2);
    }
}

#[test]
fn entries_of_one_shard_fail_and_the_others_are_placed() {
    let throttled = Some(ErrorKind::ProvisionedThroughputExceeded);
    for (effect, expected) in [
        (FaultEffect::Throttle, throttled),
        (FaultEffect::ThrottleEntries, throttled),
        (FaultEffect::FailEntries, Some(ErrorKind::InternalFailure)),
        (FaultEffect::InternalError, Some(ErrorKind::InternalFailure)),
    ] {
        let stage = EngineFixture::with_stream(2);
        let shard = Some(id(1));
        let number =
            stage.engine.faults().add(FaultRule { shard, ..rule(effect, Operation::PutRecords) });
        assert_eq!(put_two(&stage).unwrap(), [None, expected]);
        assert_eq!(stored(&stage), 1);
        assert!(stage.engine.faults().remove(number) && !stage.engine.faults().remove(number));
        assert_eq!(put_two(&stage).unwrap(), [None, None]);
    }
}

#[test]
fn a_dropped_reply_leaves_the_effect() {
    let stage = EngineFixture::with_stream(2);
    let drop_reply = |operation| {
        let fault = rule(FaultEffect::DropReply, operation);
        stage.engine.faults().add(FaultRule { count: Some(1), ..fault });
    };
    drop_reply(Operation::PutRecords);
    refused(put_two(&stage), ErrorKind::ReplyLost, "");
    drop_reply(Operation::PutRecord);
    refused(stage.try_put("k", Some(0)), ErrorKind::ReplyLost, "");
    assert_eq!(stored(&stage), 3);
    drop_reply(Operation::SplitShard);
    refused(stage.split(0, 1 << 100), ErrorKind::ReplyLost, "");
    assert_eq!(stage.shards().len(), 4);
}

#[test]
fn rules_strike_only_where_they_say() {
    let stage = EngineFixture::with_stream(2);
    let shard = Some(id(1));
    let reads = FaultRule { shard, ..rule(FaultEffect::ExpireIterator, Operation::GetRecords) };
    stage.engine.faults().add(reads);
    let [zero, one] = [0, 1].map(|shard| stage.iterator(shard, "LATEST").unwrap());
    stage.get(&zero).unwrap();
    refused(stage.get(&one), ErrorKind::ExpiredIterator, "Iterator expired.");
    stage.engine.faults().clear();
    stage.get(&one).unwrap();

    let stream = Some("other".to_owned());
    let elsewhere = FaultRule { stream, ..rule(FaultEffect::InternalError, Operation::ListShards) };
    stage.engine.faults().add(elsewhere);
    assert!(stage.list(None, None).is_ok());
    stage.create("other", 1);
    let stream = StreamTarget::named("other");
    let request = list_shards::Request { stream, ..Default::default() };
    refused(stage.engine.list_shards(&request), ErrorKind::InternalFailure, "");
}

#[test]
fn a_delay_is_told_to_the_caller() {
    let stage = EngineFixture::with_stream(1);
    let shard = Some(id(0));
    let fault = rule(FaultEffect::Delay { ms: 70 }, Operation::GetRecords);
    stage.engine.faults().add(FaultRule { shard, ..fault });
    let iterator = stage.iterator(0, "LATEST").unwrap();
    let none = StreamRef::default();
    let delay = |operation| stage.engine.delay_ms(operation, &none, None, Some(&iterator));
    assert_eq!((delay(Operation::GetRecords), delay(Operation::PutRecords)), (70, 0));
}

#[test]
fn a_put_is_delayed_by_the_shard_that_it_goes_to() {
    let stage = EngineFixture::with_stream(2);
    let fault = rule(FaultEffect::Delay { ms: 70 }, Operation::PutRecords);
    stage.engine.faults().add(FaultRule { shard: Some(id(1)), ..fault });
    let top = u128::MAX.to_string();
    let delay = |hash: &str| {
        let (stream, records) = (StreamRef::named("s"), [entry("a", Some(hash), b"")]);
        stage.engine.put_delay_ms(Operation::PutRecords, &stream, &records)
    };
    assert_eq!((delay("0"), delay(&top)), (0, 70));
}

#[test]
fn a_token_is_good_for_its_own_list_only() {
    let stage = EngineFixture::with_stream(2);
    let stream = StreamTarget { stream_name: Some("s".to_owned()), ..StreamTarget::default() };
    let page = list_shards::Request { stream, max_results: Some(1), ..Default::default() };
    let token = stage.engine.list_shards(&page).unwrap().next_token;
    assert!(token.is_some());
    let streams = list_streams::Request { next_token: token, ..Default::default() };
    refused(stage.engine.list_streams(&streams), ErrorKind::InvalidArgument, "NextToken");
}

#[test]
fn a_shard_is_split_or_merged_in_mid_traffic() {
    let stage = EngineFixture::with_stream(2);
    let once = |effect, shard| FaultRule {
        shard: Some(id(shard)),
        skip: 1,
        count: Some(1),
        ..rule(effect, Operation::PutRecord)
    };
    stage.engine.faults().add(once(FaultEffect::Split, 0));
    assert_eq!(stage.try_put("k", Some(0)).unwrap(), 0);
    assert_eq!(stage.try_put("k", Some(0)).unwrap(), 2, "split before the second put");
    assert_eq!(stage.try_put("k", Some(0)).unwrap(), 2);
    stage.engine.faults().add(once(FaultEffect::Merge, 2));
    assert_eq!(stage.try_put("k", Some(0)).unwrap(), 2);
    assert_eq!(stage.try_put("k", Some(0)).unwrap(), 4, "merged before the second put");
    stage.engine.split_now("s", None).unwrap();
    stage.engine.merge_now("s", None).unwrap();
    refused(stage.engine.split_now("s", Some(&id(0))), ErrorKind::ResourceNotFound, "shard");
}

#[test]
fn chance_follows_the_seed() {
    let history = |seed| {
        let stage = EngineFixture::new(EngineOptions { seed, ..EngineOptions::instant() });
        stage.create("s", 2);
        let fault = rule(FaultEffect::FailEntries, Operation::PutRecords);
        stage.engine.faults().add(FaultRule { probability: 0.3, ..fault });
        (0..500).flat_map(|_| put_two(&stage).unwrap()).map(|c| c.is_some()).collect::<Vec<_>>()
    };
    let first = history(1);
    assert_eq!(first, history(1));
    assert_ne!(first, history(2));
    let failed = first.iter().filter(|failed| **failed).count();
    assert!((200..400).contains(&failed), "{failed} of 1000 at 0.3");
}

#[test]
fn rules_are_read_from_json_and_unknown_words_are_refused() {
    let json = r#"{"operation":"PutRecords","shard":"shardId-000000000001","count":3,
                   "effect":{"Delay":{"ms":5}}}"#;
    let read: FaultRule = serde_json::from_str(json).unwrap();
    assert_eq!((read.effect, read.count), (FaultEffect::Delay { ms: 5 }, Some(3)));
    assert!((read.probability - 1.0).abs() < f64::EPSILON);
    let simple: FaultRule = serde_json::from_str(r#"{"effect":"DropReply"}"#).unwrap();
    assert_eq!(simple.effect, FaultEffect::DropReply);
    for wrong in [r#"{"effect":"Explode"}"#, r#"{"effect":"Split","often":1}"#, "{}"] {
        assert!(serde_json::from_str::<FaultRule>(wrong).is_err(), "{wrong}");
    }
}
