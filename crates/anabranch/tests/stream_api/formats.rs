//! The format of each call, and the fallback for an endpoint without Kinesis' CBOR.

use crate::stage::StreamFixture;
use anabranch::stream::api::{
    PutEntry, PutEntryResult, ReadFrom, ShardFilter, ShardIterator, StreamApi, StreamError,
    StreamSummary,
};
use anabranch::stream::{AwsKinesis, WireFormat};
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::retry::Fault;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const CBOR: &str = "application/x-amz-cbor-1.1";
const JSON: &str = "application/x-amz-json-1.1";

/// A reply: status, content type, body.
type CannedReply = (u16, &'static str, &'static [u8]);

/// Replies by operation and content type.
type CannedReplies = fn(&str, &str) -> CannedReply;

/// An endpoint that replies by operation and content type, and records the requests.
struct Endpoint {
    asked: Arc<Mutex<Vec<(String, String)>>>,
    api: AwsKinesis,
    _serving: JoinSet<()>,
}

impl Endpoint {
    async fn new(answer: fn(operation: &str, content_type: &str) -> CannedReply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let mut serving = JoinSet::new();
        let asks = Arc::clone(&asked);
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(serve(socket, answer, Arc::clone(&asks)));
            }
        });
        let stage = StreamFixture::new().await;
        let config = stage.sdk_config().into_builder().endpoint_url(format!("http://{address}"));
        Self { asked, api: AwsKinesis::new(&config.build()), _serving: serving }
    }

    /// Returns the requests since the last call: operation and format.
    fn asked(&self) -> Vec<String> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        let format = |kind: &str| if kind == CBOR { "CBOR" } else { "JSON" };
        asked.iter().map(|(operation, kind)| format!("{operation} {}", format(kind))).collect()
    }

    async fn put(&self) -> Result<(), StreamError> {
        let entry = PutEntry { key: "k".into(), hash: None, data: "data".into() };
        self.api.put_records(&StreamName::from("s"), &[entry]).await.map(|_| ())
    }
}

async fn serve(
    socket: TcpStream,
    answer: fn(&str, &str) -> CannedReply,
    asked: Arc<Mutex<Vec<(String, String)>>>,
) {
    let mut socket = BufReader::new(socket);
    loop {
        let (mut operation, mut kind, mut length) = (String::new(), String::new(), 0);
        loop {
            let mut line = String::new();
            if socket.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                if line.trim_end().is_empty() {
                    break;
                }
                continue;
            };
            match name.to_ascii_lowercase().as_str() {
                "x-amz-target" => operation = value.rsplit('.').next().unwrap().to_owned(),
                "content-type" => value.clone_into(&mut kind),
                "content-length" => length = value.parse().unwrap(),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        socket.read_exact(&mut body).await.unwrap();
        asked.lock().unwrap().push((operation.clone(), kind.clone()));
        let (status, content_type, body) = answer(&operation, &kind);
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
    }
}

const PLACED: &[u8] = br#"{"Records":[{"ShardId":"shardId-000000000000","SequenceNumber":"1"}]}"#;

/// Replies to every request that the resource does not exist, in the format of the request.
fn nothing_here(_: &str, kind: &str) -> CannedReply {
    if kind == CBOR {
        (400, CBOR, b"\xa1\x66__type\x78\x19ResourceNotFoundException")
    } else {
        (400, JSON, br#"{"__type":"ResourceNotFoundException"}"#)
    }
}

#[tokio::test]
async fn every_call_speaks_cbor_but_those_whose_meaning_could_change() {
    let endpoint = Endpoint::new(nothing_here).await;
    let (api, s, shard) = (&endpoint.api, StreamName::from("s"), ShardId::from_index(0));
    let missing = |outcome: Option<StreamError>| {
        let error = outcome.expect("there is nothing");
        assert_eq!(error.fault, Fault::Missing, "{error}");
    };
    let iterator = ShardIterator("i".into());
    missing(api.describe(&s).await.err());
    missing(api.list_shards(&s, ShardFilter::AtLatest).await.err());
    missing(api.list_shards(&s, ShardFilter::AtTimestamp(1)).await.err());
    missing(api.iterator(&s, &shard, ReadFrom::TrimHorizon).await.err());
    missing(api.iterator(&s, &shard, ReadFrom::AtTimestamp(1)).await.err());
    missing(api.records(&s, &iterator, 1).await.err());
    missing(endpoint.put().await.err());
    let entry = PutEntry { key: "k".into(), hash: None, data: "data".into() };
    missing(api.put_record(&s, &entry, None).await.err());
    let stage = StreamFixture::new().await;
    stage.create("s", 1);
    let local = AwsKinesis::new(&stage.sdk_config());
    let summary: StreamSummary = local.describe(&s).await.unwrap();
    missing(api.register_consumer(&summary, "c").await.err());
    missing(api.describe_consumer(&summary, "c").await.err());
    let consumer = local.register_consumer(&summary, "c").await.unwrap();
    missing(api.deregister_consumer(&consumer).await.err());
    missing(api.subscribe(&consumer, &shard, ReadFrom::Latest).await.err());
    assert_eq!(
        endpoint.asked(),
        [
            "DescribeStreamSummary JSON",
            "ListShards CBOR",
            "ListShards JSON",
            "GetShardIterator CBOR",
            "GetShardIterator JSON",
            "GetRecords CBOR",
            "PutRecords CBOR",
            "PutRecord CBOR",
            "RegisterStreamConsumer CBOR",
            "DescribeStreamConsumer CBOR",
            "DeregisterStreamConsumer CBOR",
            "SubscribeToShard JSON",
        ]
    );
    assert_eq!(api.format(), WireFormat::Cbor);
}

#[tokio::test]
async fn an_endpoint_that_refuses_cbor_gets_the_same_call_in_json_and_no_cbor_again() {
    let refusals: [fn(&str, &str) -> CannedReply; 3] = [
        |_, kind| match kind {
            CBOR => (404, "text/plain", b"Not Found"),
            _ => (200, JSON, PLACED),
        },
        |_, kind| match kind {
            CBOR => (400, JSON, br#"{"__type":"UnknownOperationException"}"#),
            _ => (200, JSON, PLACED),
        },
        |_, kind| match kind {
            CBOR => (400, CBOR, b"\xa1\x66__type\x76SerializationException"),
            _ => (200, JSON, PLACED),
        },
    ];
    for answer in refusals {
        let endpoint = Endpoint::new(answer).await;
        endpoint.put().await.unwrap();
        endpoint.put().await.unwrap();
        assert_eq!(endpoint.asked(), ["PutRecords CBOR", "PutRecords JSON", "PutRecords JSON"]);
        assert_eq!(endpoint.api.format(), WireFormat::Json);
    }
}

#[tokio::test]
async fn a_put_that_may_have_taken_effect_is_not_repeated_for_the_sake_of_the_format() {
    let endpoint = Endpoint::new(|_, kind| match kind {
        CBOR => (500, "text/html", b"<html>"),
        _ => (200, JSON, PLACED),
    })
    .await;
    let error = endpoint.put().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert_eq!(endpoint.asked(), ["PutRecords CBOR"]);
    endpoint.put().await.unwrap();
    assert_eq!(endpoint.asked(), ["PutRecords JSON"], "the next attempt is in JSON");
}

#[tokio::test]
async fn a_proxy_that_answers_for_the_service_refuses_no_record() {
    const PAGE: &[u8] = b"<html>Request Header Or Cookie Too Large</html>";
    const REFUSED: &[u8] = br#"{"__type":"ValidationException","message":"no"}"#;
    const NEW: &[u8] = br#"{"__type":"NewRefusalException","message":"no"}"#;
    const LATE: &[u8] =
        br#"{"__type":"InvalidSignatureException","message":"Signature expired: 1 is now earlier"}"#;
    let answers: [(CannedReplies, Fault); 13] = [
        (|_, _| (401, "text/html", PAGE), Fault::Unknown),
        (|_, _| (403, "text/html", PAGE), Fault::Unknown),
        (|_, _| (404, "text/html", PAGE), Fault::Unknown),
        (|_, _| (403, JSON, NEW), Fault::AccessDenied),
        (|_, _| (404, JSON, NEW), Fault::Unknown),
        (|_, _| (404, JSON, br#"{"__type":"ResourceNotFoundException"}"#), Fault::Missing),
        (|_, _| (400, JSON, LATE), Fault::CredentialsExpired),
        (|_, _| (400, "text/html", PAGE), Fault::Unknown),
        (|_, _| (431, "text/html", PAGE), Fault::Unknown),
        (|_, _| (400, JSON, b"{}"), Fault::Unknown),
        (|_, _| (400, CBOR, b"\xa0"), Fault::Unknown),
        (|_, _| (413, "text/html", PAGE), Fault::TooLarge),
        (|_, _| (400, JSON, REFUSED), Fault::Invalid),
    ];
    for (answer, fault) in answers {
        let endpoint = Endpoint::new(answer).await;
        let error = endpoint.put().await.unwrap_err();
        assert_eq!(error.fault, fault, "{error}");
    }
}

/// The calls that read a shard or check that its stream exists: one such reply to each would end
/// the worker.
#[tokio::test]
async fn a_proxy_that_finds_no_route_makes_no_stream_disappear() {
    const ROUTE: &[u8] = br#"{"__type":"RouteNotFoundException","message":"no such route"}"#;
    let endpoint = Endpoint::new(|_, _| (404, JSON, ROUTE)).await;
    let (api, s, shard) = (&endpoint.api, StreamName::from("s"), ShardId::from_index(0));
    let iterator = ShardIterator("i".into());
    for error in [
        api.describe(&s).await.unwrap_err(),
        api.list_shards(&s, ShardFilter::All).await.unwrap_err(),
        api.iterator(&s, &shard, ReadFrom::TrimHorizon).await.unwrap_err(),
        api.records(&s, &iterator, 1).await.unwrap_err(),
    ] {
        assert_eq!(error.fault, Fault::Unknown, "{error}");
        assert!(error.is_retryable(), "{error}");
    }
}

#[tokio::test]
async fn data_that_are_text_are_read_again_in_json() {
    // kinesis-mock's CBOR: everything is right but the data.
    let endpoint = Endpoint::new(|_, kind| match kind {
        CBOR => (
            200,
            CBOR,
            b"\xa1\x67Records\x81\xa3\x64Data\x64YWJj\x6cPartitionKey\x61k\x6eSequenceNumber\x611",
        ),
        _ => {
            (200, JSON, br#"{"Records":[{"Data":"YWJj","PartitionKey":"k","SequenceNumber":"1"}]}"#)
        }
    })
    .await;
    let iterator = ShardIterator("i".into());
    let fetched = endpoint.api.records(&StreamName::from("s"), &iterator, 1).await.unwrap();
    assert_eq!(&fetched.records[0].data[..], b"abc");
    assert_eq!(endpoint.asked(), ["GetRecords CBOR", "GetRecords JSON"]);
}

/// Successful replies of a server that does not implement Kinesis.
const NOTHING: [CannedReplies; 8] = [
    |_, _| (200, CBOR, b""),
    |_, _| (200, CBOR, b"\xa0"),
    |_, _| (200, CBOR, b"\xa1\x66status\x62ok"),
    |_, _| (200, JSON, b""),
    |_, _| (200, JSON, b"{}"),
    |_, _| (200, JSON, br#"{"status":"ok"}"#),
    |_, _| (200, "text/html", b""),
    |_, _| (200, "text/html", b"<html>It works!</html>"),
];

#[tokio::test]
async fn a_good_reply_that_says_nothing_is_an_error_whatever_was_asked() {
    let (s, shard, iterator) =
        (StreamName::from("s"), ShardId::from_index(0), ShardIterator("i".into()));
    let entry = PutEntry { key: "k".into(), hash: None, data: "data".into() };
    let stage = StreamFixture::new().await;
    stage.create("s", 1);
    let local = AwsKinesis::new(&stage.sdk_config());
    let summary: StreamSummary = local.describe(&s).await.unwrap();
    for (place, answer) in NOTHING.into_iter().enumerate() {
        let endpoint = Endpoint::new(answer).await;
        let api = &endpoint.api;
        let again = |operation: &str, error: Option<StreamError>| {
            let Some(error) = error else { panic!("reply {place} passes for one to {operation}") };
            assert!(error.is_retryable(), "reply {place} to {operation}: {error}");
        };
        again("DescribeStreamSummary", api.describe(&s).await.err());
        again("ListShards", api.list_shards(&s, ShardFilter::All).await.err());
        again("ListShards", api.list_shards(&s, ShardFilter::AtLatest).await.err());
        again("GetShardIterator", api.iterator(&s, &shard, ReadFrom::TrimHorizon).await.err());
        again("GetRecords", api.records(&s, &iterator, 1).await.err());
        again("PutRecords", endpoint.put().await.err());
        again("PutRecord", api.put_record(&s, &entry, None).await.err());
        again("RegisterStreamConsumer", api.register_consumer(&summary, "c").await.err());
        again("DescribeStreamConsumer", api.describe_consumer(&summary, "c").await.err());
    }
}

#[tokio::test]
async fn a_later_page_that_says_nothing_is_not_the_end_of_the_list() {
    const FIRST: &[u8] = br#"{"Shards":[],"NextToken":"t"}"#;
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let endpoint = Endpoint::new(|_, _| match ASKED.fetch_add(1, Ordering::Relaxed) {
        0 => (200, JSON, FIRST),
        _ => (200, JSON, b"{}"),
    })
    .await;
    let list = endpoint.api.list_shards(&StreamName::from("s"), ShardFilter::All).await;
    assert!(list.unwrap_err().is_retryable());
}

#[tokio::test]
async fn a_list_without_a_shard_is_no_list() {
    let endpoint = Endpoint::new(|_, _| (200, JSON, br#"{"Shards":[]}"#)).await;
    let list = endpoint.api.list_shards(&StreamName::from("s"), ShardFilter::All).await;
    assert!(list.unwrap_err().is_retryable());
}

#[tokio::test]
async fn a_placed_record_has_a_shard_and_a_number() {
    let half: [CannedReplies; 4] = [
        |_, _| {
            (200, JSON, br#"{"ShardId":"","SequenceNumber":"1","Records":[{"ShardId":"","SequenceNumber":"1"}]}"#)
        },
        |_, _| (200, JSON, br#"{"SequenceNumber":"1","Records":[{"SequenceNumber":"1"}]}"#),
        |_, _| {
            (200, JSON, br#"{"ShardId":"shardId-000000000000","Records":[{"ShardId":"shardId-000000000000"}]}"#)
        },
        |_, _| {
            (
                200,
                JSON,
                br#"{"ShardId":"shardId-000000000000","SequenceNumber":"one","Records":[{}]}"#,
            )
        },
    ];
    let entry = PutEntry { key: "k".into(), hash: None, data: "data".into() };
    for answer in half {
        let endpoint = Endpoint::new(answer).await;
        let error = endpoint.put().await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        let error = endpoint.api.put_record(&StreamName::from("s"), &entry, None).await;
        assert!(error.unwrap_err().is_retryable());
    }
}

#[tokio::test]
async fn a_null_in_a_cbor_reply_is_a_member_that_is_not_there() {
    let endpoint = Endpoint::new(|operation, kind| match (operation, kind) {
        ("PutRecords", CBOR) => (
            200,
            CBOR,
            b"\xa3\x71FailedRecordCount\x00\x67Records\x81\xa4\
                \x67ShardId\x74shardId-000000000000\x6eSequenceNumber\x617\
                \x69ErrorCode\xf6\x6cErrorMessage\xf6\
              \x6eEncryptionType\xf6",
        ),
        (_, CBOR) => (
            200,
            CBOR,
            b"\xa4\x67Records\x81\xa5\
                \x64Data\x43abc\x6cPartitionKey\x61k\x6eSequenceNumber\x617\
                \x78\x1bApproximateArrivalTimestamp\xf6\x6eEncryptionType\xf6\
              \x71NextShardIterator\xf6\x6bChildShards\xf6\x72MillisBehindLatest\x00",
        ),
        _ => (500, JSON, b"{}"),
    })
    .await;
    let (stream, iterator) = (StreamName::from("s"), ShardIterator("i".into()));
    let entry = PutEntry { key: "k".into(), hash: None, data: "data".into() };
    let placed = endpoint.api.put_records(&stream, &[entry]).await.unwrap();
    assert!(
        matches!(&placed[..], [PutEntryResult::Placed(at)] if at.sequence.to_string() == "7"),
        "{placed:?}"
    );
    let fetched = endpoint.api.records(&stream, &iterator, 1).await.unwrap();
    let [record] = &fetched.records[..] else { panic!("{fetched:?}") };
    assert_eq!((&record.data[..], record.arrival_ms), (&b"abc"[..], 0));
    assert!(fetched.next.is_none() && fetched.children.is_empty());
    assert_eq!(endpoint.asked(), ["PutRecords CBOR", "GetRecords CBOR"], "nothing is asked twice");
    let endpoint = Endpoint::new(|_, kind| match kind {
        CBOR => {
            (200, CBOR, b"\xa3\x67Records\xf6\x71NextShardIterator\x61i\x72MillisBehindLatest\x00")
        }
        _ => (500, JSON, b"{}"),
    })
    .await;
    let fetched = endpoint.api.records(&stream, &iterator, 1).await.unwrap();
    assert!(fetched.records.is_empty() && fetched.next.is_some(), "{fetched:?}");
}

#[tokio::test]
async fn a_record_without_a_number_is_not_delivered_under_a_made_up_one() {
    let without: [CannedReplies; 5] = [
        |_, _| (200, CBOR, b"\xa1\x67Records\x81\xa2\x64Data\x43abc\x6cPartitionKey\x61k"),
        |_, _| {
            (
                200,
                CBOR,
                b"\xa1\x67Records\x81\xa3\x64Data\x43abc\x6cPartitionKey\x61k\x6eSequenceNumber\xf6",
            )
        },
        |_, _| {
            (
                200,
                CBOR,
                b"\xa1\x67Records\x81\xa3\x64Data\x43abc\x6cPartitionKey\x61k\x6eSequenceNumber\x63one",
            )
        },
        |_, _| (200, JSON, br#"{"Records":[{"Data":"YWJj","PartitionKey":"k"}]}"#),
        |_, _| {
            (
                200,
                JSON,
                br#"{"Records":[{"Data":"YWJj","PartitionKey":"k","SequenceNumber":"one"}]}"#,
            )
        },
    ];
    let (stream, iterator) = (StreamName::from("s"), ShardIterator("i".into()));
    for (place, answer) in without.into_iter().enumerate() {
        let endpoint = Endpoint::new(answer).await;
        match endpoint.api.records(&stream, &iterator, 1).await {
            Ok(fetched) => panic!("reply {place} gives {:?}", fetched.records),
            Err(error) => assert!(error.is_retryable(), "reply {place}: {error}"),
        }
    }
}

#[tokio::test]
async fn the_end_of_a_shard_needs_no_child() {
    let (stream, iterator) = (StreamName::from("s"), ShardIterator("i".into()));
    let endpoint =
        Endpoint::new(|_, _| (200, JSON, br#"{"Records":[],"MillisBehindLatest":0}"#)).await;
    let fetched = endpoint.api.records(&stream, &iterator, 1).await.unwrap();
    assert!(fetched.next.is_none());
}

#[tokio::test]
async fn a_reply_in_json_to_a_cbor_request_is_read_as_what_it_is() {
    let endpoint = Endpoint::new(|_, _| (200, JSON, PLACED)).await;
    endpoint.put().await.unwrap();
    assert_eq!(endpoint.asked(), ["PutRecords CBOR"]);
}

#[tokio::test]
async fn a_stream_was_created_at_the_same_moment_in_both_formats() {
    let stage = StreamFixture::new().await;
    let cbor = AwsKinesis::speaking(WireFormat::Cbor, &stage.sdk_config());
    let json = AwsKinesis::speaking(WireFormat::Json, &stage.sdk_config());
    for name in ["a", "b", "c", "d", "e"] {
        stage.create(name, 1);
        let name = StreamName::from(name);
        let summary = cbor.describe(&name).await.unwrap();
        assert_eq!(summary, json.describe(&name).await.unwrap());
    }
}
