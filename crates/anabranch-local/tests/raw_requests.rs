//! Raw requests on the wire: content types, errors, limits, ids.

mod world;

use serde_json::json;
use world::ServerFixture;
use world::wire::RawConnection;

const JSON: &str = "application/x-amz-json-1.1";
const CBOR: &str = "application/x-amz-cbor-1.1";

#[tokio::test]
async fn bad_requests_get_400_with_a_type_and_never_500() {
    let world = ServerFixture::start().await;
    let mut wire = RawConnection::connect(world.local.address()).await;
    wire.kinesis("CreateStream", r#"{"StreamName":"s","ShardCount":1}"#).await;
    for (operation, body, kind) in [
        ("MakeCoffee", "{}", "UnknownOperationException"),
        ("CreateStream", "{", "SerializationException"),
        ("CreateStream", "[]", "SerializationException"),
        ("CreateStream", r#"{"StreamName":7}"#, "SerializationException"),
        ("CreateStream", "{}", "ValidationException"),
        ("CreateStream", "", "ValidationException"),
        ("PutRecords", "{}", "ValidationException"),
        ("PutRecords", "\u{7f}", "SerializationException"),
        ("PutRecords", r#"{"StreamName":"s","Records":[{}]}"#, "ValidationException"),
        ("PutRecord", r#"{"StreamName":"s","PartitionKey":"k"}"#, "ValidationException"),
        (
            "PutRecord",
            r#"{"StreamName":"s","PartitionKey":"k","Data":"not base64!"}"#,
            "SerializationException",
        ),
        ("PutRecord", r#"{"StreamName":"s","PartitionKey":"","Data":""}"#, "ValidationException"),
        (
            "PutRecord",
            r#"{"StreamName":"t","PartitionKey":"k","Data":""}"#,
            "ResourceNotFoundException",
        ),
        ("GetRecords", "{}", "ValidationException"),
        ("GetRecords", r#"{"ShardIterator":"garbage"}"#, "InvalidArgumentException"),
        ("ListShards", r#"{"NextToken":"garbage"}"#, "InvalidArgumentException"),
        ("SubscribeToShard", "{}", "ValidationException"),
        ("SubscribeToShard", "{", "SerializationException"),
    ] {
        let answer = wire.kinesis(operation, body).await;
        assert_eq!(answer.status, 400, "{operation} {body}: {:?}", answer.json());
        assert_eq!(answer.json()["__type"], kind, "{operation} {body}: {:?}", answer.json());
        assert_eq!(answer.header("content-type"), Some(JSON), "{operation}");
        assert!(answer.header("x-amzn-requestid").is_some(), "{operation}");
    }
    world.local.stop().await;
}

#[tokio::test]
async fn escaped_keys_and_empty_data_come_back_as_they_were() {
    let world = ServerFixture::start().await;
    let mut wire = RawConnection::connect(world.local.address()).await;
    wire.kinesis("CreateStream", r#"{"StreamName":"s","ShardCount":1}"#).await;
    let keys = ["plain", "quote\"back\\slash", "line\nbreak\u{1}", "é漢😀"];
    let records: Vec<_> = keys.iter().map(|key| json!({"PartitionKey": key, "Data": ""})).collect();
    let put = json!({"StreamName": "s", "Records": records}).to_string();
    assert_eq!(wire.kinesis("PutRecords", &put).await.json()["FailedRecordCount"], 0);
    let read = read_all(&mut wire).await;
    let got: Vec<_> = read.iter().map(|r| r["PartitionKey"].as_str().expect("a key")).collect();
    assert_eq!(got, keys);
    assert!(read.iter().all(|record| record["Data"] == ""));
    world.local.stop().await;
}

async fn read_all(wire: &mut RawConnection) -> Vec<serde_json::Value> {
    let at = json!({
        "StreamName": "s",
        "ShardId": "shardId-000000000000",
        "ShardIteratorType": "TRIM_HORIZON",
    });
    let iterator = wire.kinesis("GetShardIterator", &at.to_string()).await.json();
    let get = json!({"ShardIterator": iterator["ShardIterator"]}).to_string();
    let reply = wire.kinesis("GetRecords", &get).await.json();
    reply["Records"].as_array().expect("records").clone()
}

/// Encodes a request in CBOR as Jackson does: indefinite maps, and texts with their length.
fn cbor(fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut out = vec![0xbf];
    for (name, value) in fields {
        out.extend(text(name));
        out.extend(value);
    }
    out.push(0xff);
    out
}

fn text(text: &str) -> Vec<u8> {
    let mut out = vec![0x78, u8::try_from(text.len()).expect("a short text")];
    out.extend_from_slice(text.as_bytes());
    out
}

fn contains(body: &[u8], part: &[u8]) -> bool {
    body.windows(part.len()).any(|window| window == part)
}

#[tokio::test]
async fn cbor_is_answered_in_cbor_with_byte_strings_and_milliseconds() {
    let world = ServerFixture::start().await;
    let mut wire = RawConnection::connect(world.local.address()).await;
    let create = cbor(&[("StreamName", text("s")), ("ShardCount", vec![1])]);
    let created = wire.call("CreateStream", CBOR, &create).await;
    assert_eq!((created.status, created.body.len()), (200, 0));
    assert_eq!(created.header("content-type"), Some(CBOR));

    let data = b"\x00\xffraw".to_vec();
    let blob = [vec![0x45], data.clone()].concat();
    let put =
        cbor(&[("StreamName", text("s")), ("PartitionKey", text("key")), ("Data", blob.clone())]);
    let put = wire.call("PutRecord", CBOR, &put).await;
    assert_eq!(put.status, 200, "{:?}", put.body);
    assert!(contains(&put.body, b"shardId-000000000000"));
    let entry = cbor(&[("Data", blob.clone()), ("PartitionKey", text("key"))]);
    let entries = [vec![0x9f], entry.clone(), entry, vec![0xff]].concat();
    let puts = cbor(&[("Records", entries), ("StreamName", text("s"))]);
    let puts = wire.call("PutRecords", CBOR, &puts).await;
    assert!(contains(&puts.body, b"FailedRecordCount\x00"), "{:?}", puts.body);

    // The time of the request is one minute ago, as tag 1 with milliseconds.
    let now = world.local.engine().clock().now_ms();
    let ago = [vec![0xc1, 0x1b], (now - 60_000).to_be_bytes().to_vec()].concat();
    let iterator = cbor(&[
        ("StreamName", text("s")),
        ("ShardId", text("shardId-000000000000")),
        ("ShardIteratorType", text("AT_TIMESTAMP")),
        ("Timestamp", ago),
    ]);
    let iterator = wire.call("GetShardIterator", CBOR, &iterator).await;
    assert_eq!(iterator.status, 200, "{:?}", String::from_utf8_lossy(&iterator.body));
    // The reply is a map with one text, which is passed on unchanged.
    let get = [&b"\xbf"[..], &iterator.body[1..], b"\xff"].concat();
    let got = wire.call("GetRecords", CBOR, &get).await;
    assert_eq!(got.header("content-type"), Some(CBOR));
    let datum = [b"\x64Data".to_vec(), blob].concat();
    let copies = got.body.windows(datum.len()).filter(|window| *window == datum).count();
    assert_eq!(copies, 3);
    let stamp = b"ApproximateArrivalTimestamp\xc1\x1b";
    let at = got.body.windows(stamp.len()).position(|window| window == stamp).expect("a time");
    let ms = &got.body[at + stamp.len()..][..8];
    let ms = u64::from_be_bytes(ms.try_into().expect("eight bytes"));
    assert!(now.abs_diff(ms) < 60_000, "{ms} is not near {now}");

    let error = wire.call("DeleteStream", CBOR, &cbor(&[("StreamName", text("absent"))])).await;
    assert_eq!((error.status, error.header("content-type")), (400, Some(CBOR)));
    assert!(contains(&error.body, b"ResourceNotFoundException"));
    let garbage = wire.call("PutRecords", CBOR, b"{\"StreamName\":\"s\"}").await;
    assert_eq!(garbage.status, 400);
    assert!(contains(&garbage.body, b"SerializationException"));
    world.local.stop().await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_and_the_server_goes_on() {
    let world = ServerFixture::start().await;
    let mut wire = RawConnection::connect(world.local.address()).await;
    let headers = [("x-amz-target", "Kinesis_20131202.PutRecords"), ("content-type", JSON)];
    let answer = wire.send("POST", "/", &headers, &vec![b' '; 17 * 1024 * 1024]).await;
    if let Some(answer) = answer {
        assert_eq!(answer.status, 413);
    }
    let mut wire = RawConnection::connect(world.local.address()).await;
    assert_eq!(wire.kinesis("ListStreams", "{}").await.status, 200);
    world.local.stop().await;
}

#[tokio::test]
async fn people_who_look_with_a_browser_get_a_line_of_text() {
    let world = ServerFixture::start().await;
    let mut wire = RawConnection::connect(world.local.address()).await;
    for path in ["/", "/health"] {
        let answer = wire.send("GET", path, &[], b"").await.expect("an answer");
        assert_eq!(answer.status, 200);
        assert!(answer.body.starts_with(b"anabranch local"));
        assert!(answer.header("date").is_some());
    }
    let answer = wire.send("PUT", "/", &[], b"").await.expect("an answer");
    assert_eq!(answer.status, 400);
    world.local.stop().await;
}

#[tokio::test]
async fn metrics_are_accepted_in_every_protocol_and_counted() {
    let world = ServerFixture::start().await;
    let mut wire = RawConnection::connect(world.local.address()).await;
    let rpc = "/service/GraniteServiceVersion20100801/operation/PutMetricData";
    let target = ("x-amz-target", "GraniteServiceVersion20100801.PutMetricData");
    let form = ("content-type", "application/x-www-form-urlencoded; charset=utf-8");
    for (path, header, body, kind) in [
        ("/", target, &br#"{"MetricData":[{},{}]}"#[..], "application/x-amz-json-1.0"),
        ("/", form, b"Action=PutMetricData&MetricData.member.1.MetricName=a", "text/xml"),
        (
            rpc,
            ("content-type", "application/cbor"),
            b"\xa1\x6aMetricData\x81\xa0",
            "application/cbor",
        ),
    ] {
        let answer = wire.send("POST", path, &[header], body).await.expect("an answer");
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)));
    }
    let state = wire.send("GET", "/_anabranch/state", &[], b"").await.expect("an answer");
    assert_eq!(state.json()["metrics"], json!({"calls": 3, "data": 4}));
    world.local.stop().await;
}
