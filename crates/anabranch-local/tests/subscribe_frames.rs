//! `SubscribeToShard` over HTTP/1.1, frame by frame.

mod world;

use anabranch_local::Engine;
use anabranch_local::change::Change;
use anabranch_local::journal::{Journal, JournalAppend};
use aws_smithy_eventstream::frame::read_message_from;
use serde_json::{Value, json};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use world::ServerFixture;
use world::wire::{RawConnection, RawResponse};

/// Decodes the frames of a body: message type, event or exception type, payload.
fn frames(body: &[u8]) -> Vec<(String, String, Value)> {
    let mut rest = body;
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let message = read_message_from(&mut rest).expect("a whole frame");
        let header = |name: &str| {
            let found = message.headers().iter().find(|h| h.name().as_str() == name);
            found.map(|h| h.value().as_string().expect("a string").as_str().to_owned())
        };
        let kind = header(":message-type").expect("a message type");
        let name = header(":event-type").or_else(|| header(":exception-type")).expect("a name");
        let payload = serde_json::from_slice(message.payload()).expect("JSON");
        frames.push((kind, name, payload));
    }
    frames
}

async fn subscribe(wire: &mut RawConnection, arn: &str) -> RawResponse {
    let request = json!({
        "ConsumerARN": arn,
        "ShardId": "shardId-000000000000",
        "StartingPosition": {"Type": "TRIM_HORIZON"},
    });
    wire.kinesis("SubscribeToShard", &request.to_string()).await
}

#[tokio::test]
async fn the_first_frame_is_the_initial_response_and_the_last_names_the_children() {
    let world = ServerFixture::start().await;
    world.stream("s", 1).await;
    let arn = world.consumer("s", "reader").await;
    world.put_numbered("s", 0..3).await;
    world.local.engine().split_now("s", None).expect("a split");
    let mut wire = RawConnection::connect(world.local.address()).await;
    let answer = subscribe(&mut wire, &arn).await;
    assert_eq!(answer.header("content-type"), Some("application/vnd.amazon.eventstream"));
    assert!(answer.header("x-amzn-requestid").is_some());
    let frames = frames(&answer.body);
    let event = |name: &str| ("event".to_owned(), name.to_owned());
    assert_eq!(
        (frames[0].0.clone(), frames[0].1.clone()),
        event("initial-response"),
        "Go fails without it, JavaScript waits for it"
    );
    let records: usize = frames[1..]
        .iter()
        .map(|(_, _, event)| event["Records"].as_array().map_or(0, Vec::len))
        .sum();
    assert_eq!(records, 3);
    let (kind, name, last) = frames.last().expect("an event");
    assert_eq!((kind.clone(), name.clone()), event("SubscribeToShardEvent"));
    assert_eq!(last["ChildShards"].as_array().map(Vec::len), Some(2));
    assert_eq!(last.get("ContinuationSequenceNumber"), None);
    world.local.stop().await;
}

/// A journal on a disk that accepts writes but cannot sync them.
struct NeverDurable;

impl Journal for NeverDurable {
    fn change(&self, _: &Change) -> io::Result<()> {
        Ok(())
    }

    fn append(&self, _: &JournalAppend<'_>) -> io::Result<()> {
        Ok(())
    }

    fn durable(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        Box::pin(async { Err(io::Error::other("the disk is gone")) })
    }

    fn run_maintenance(&self, _: &Engine) {}
}

#[tokio::test]
async fn a_subscriber_is_told_nothing_that_is_not_durable() {
    let world = ServerFixture::start().await;
    world.stream("s", 1).await;
    let arn = world.consumer("s", "reader").await;
    world.put_numbered("s", 0..3).await;
    let engine = world.local.engine();
    engine.split_now("s", None).expect("a split");
    engine.set_journal(Arc::new(NeverDurable));
    let mut wire = RawConnection::connect(world.local.address()).await;
    let frames = frames(&subscribe(&mut wire, &arn).await.body);
    let (kind, name, _) = frames.last().expect("a frame");
    assert_eq!((kind.as_str(), name.as_str()), ("exception", "InternalFailureException"));
    assert!(frames.iter().all(|(_, _, payload)| payload.get("Records").is_none()), "{frames:?}");
    world.local.stop().await;
}

#[tokio::test]
async fn what_goes_wrong_later_is_an_exception_frame() {
    let world = ServerFixture::start().await;
    world.stream("s", 1).await;
    let arn = world.consumer("s", "reader").await;
    let mut wire = RawConnection::connect(world.local.address()).await;
    let delete = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let delete = world.kinesis.delete_stream().stream_name("s");
        delete.enforce_consumer_deletion(true).send().await.expect("deleted");
    };
    let (answer, ()) = tokio::join!(subscribe(&mut wire, &arn), delete);
    let frames = frames(&answer.body);
    let (kind, name, payload) = frames.last().expect("a frame");
    assert_eq!((kind.as_str(), name.as_str()), ("exception", "ResourceNotFoundException"));
    assert!(payload["message"].is_string(), "{payload}");
    world.local.stop().await;
}
