//! Fault injection through the control endpoint, as a test in any language would use it.

mod world;

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use world::ServerFixture;
use world::wire::RawConnection;

const PUT: &str = r#"{"StreamName":"s","Records":[{"PartitionKey":"k","Data":"eA=="}]}"#;

struct Control(RawConnection);

impl Control {
    async fn call(&mut self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let path = format!("/_anabranch/{path}");
        let body = body.to_string();
        let answer = self.0.send(method, &path, &[], body.as_bytes()).await.expect("an answer");
        (answer.status, answer.json())
    }

    async fn fault(&mut self, rule: Value) -> u64 {
        let (status, body) = self.call("POST", "faults", &rule).await;
        assert_eq!(status, 200, "{body}");
        body["id"].as_u64().expect("a number")
    }
}

async fn start() -> (ServerFixture, RawConnection, Control) {
    let world = ServerFixture::start().await;
    world.stream("s", 1).await;
    let wire = RawConnection::connect(world.local.address()).await;
    let control = Control(RawConnection::connect(world.local.address()).await);
    (world, wire, control)
}

#[tokio::test]
async fn a_dropped_reply_closes_the_connection_after_the_put_took_effect() {
    let (world, mut wire, mut control) = start().await;
    control.fault(json!({"operation": "PutRecords", "effect": "DropReply", "count": 1})).await;
    let headers = [("x-amz-target", "Kinesis_20131202.PutRecords")];
    let lost = wire.send("POST", "/", &headers, PUT.as_bytes()).await;
    assert!(lost.is_none(), "{lost:?}");
    let (records, _) = world.read_keys("s", "shardId-000000000000").await;
    assert_eq!(records, ["k"], "the put took effect");
    let mut wire = RawConnection::connect(world.local.address()).await;
    assert_eq!(wire.kinesis("PutRecords", PUT).await.status, 200, "the rule is spent");
    world.local.stop().await;
}

#[tokio::test]
async fn throttles_and_failures_strike_as_often_as_asked() {
    let (world, mut wire, mut control) = start().await;
    for (effect, status, kind) in [
        (json!("Throttle"), 400, "ProvisionedThroughputExceededException"),
        (json!("InternalError"), 500, "InternalFailure"),
    ] {
        let rule = json!({"operation": "PutRecords", "effect": effect, "count": 2});
        let id = control.fault(rule).await;
        for _ in 0..2 {
            let answer = wire.kinesis("PutRecords", PUT).await;
            assert_eq!(answer.status, status);
            assert_eq!(answer.json()["__type"], kind);
        }
        assert_eq!(wire.kinesis("PutRecords", PUT).await.status, 200);
        let (status, _) = control.call("DELETE", &format!("faults/{id}"), &json!({})).await;
        assert_eq!(status, 200);
    }
    control.fault(json!({"operation": "PutRecords", "effect": "FailEntries", "count": 1})).await;
    let reply = wire.kinesis("PutRecords", PUT).await.json();
    assert_eq!(reply["FailedRecordCount"], 1);
    assert_eq!(reply["Records"][0]["ErrorCode"], "InternalFailure");
    let (_, rules) = control.call("GET", "faults", &json!({})).await;
    assert_eq!(rules["faults"].as_array().map(Vec::len), Some(1));
    control.call("DELETE", "faults", &json!({})).await;
    let (_, rules) = control.call("GET", "faults", &json!({})).await;
    assert_eq!(rules["faults"], json!([]));
    world.local.stop().await;
}

#[tokio::test]
async fn a_delay_holds_the_answer_back() {
    let (world, mut wire, mut control) = start().await;
    let rule = json!({"stream": "s", "effect": {"Delay": {"ms": 300}}, "count": 1});
    control.fault(rule).await;
    let began = Instant::now();
    wire.kinesis("PutRecords", PUT).await;
    assert!(began.elapsed() >= Duration::from_millis(300));
    world.local.stop().await;
}

#[tokio::test]
async fn a_delay_finds_the_further_pages_of_a_list_by_their_token() {
    let (world, mut wire, mut control) = start().await;
    world.stream("t", 2).await;
    let page = r#"{"StreamName":"t","MaxResults":1}"#;
    let token = wire.kinesis("ListShards", page).await.json()["NextToken"].clone();
    let further = json!({"NextToken": token}).to_string();
    for (stream, struck) in [("s", 0), ("t", 1)] {
        let delay = json!({"Delay": {"ms": 1}});
        let rule = json!({"operation": "ListShards", "stream": stream, "effect": delay});
        let id = control.fault(rule).await;
        assert_eq!(wire.kinesis("ListShards", &further).await.status, 200);
        let (_, rules) = control.call("GET", "faults", &json!({})).await;
        assert_eq!(rules["faults"][0]["struck"], struck, "{rules}");
        control.call("DELETE", &format!("faults/{id}"), &json!({})).await;
    }
    world.local.stop().await;
}

#[tokio::test]
async fn a_stream_is_resharded_and_its_iterators_expire_on_request() {
    let (world, mut wire, mut control) = start().await;
    let at = r#"{"StreamName":"s","ShardId":"shardId-000000000000","ShardIteratorType":"LATEST"}"#;
    let iterator = wire.kinesis("GetShardIterator", at).await.json()["ShardIterator"].clone();
    let get = json!({"ShardIterator": iterator}).to_string();
    assert_eq!(wire.kinesis("GetRecords", &get).await.status, 200);
    let (status, body) = control.call("POST", "expire-iterators", &json!({"stream": "s"})).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(wire.kinesis("GetRecords", &get).await.json()["__type"], "ExpiredIteratorException");

    let split = json!({"stream": "s", "split": "shardId-000000000000"});
    assert_eq!(control.call("POST", "reshard", &split).await.0, 200);
    let merge = json!({"stream": "s", "merge": "shardId-000000000001"});
    assert_eq!(control.call("POST", "reshard", &merge).await.0, 200);
    let shards = wire.kinesis("ListShards", r#"{"StreamName":"s"}"#).await.json();
    assert_eq!(shards["Shards"].as_array().map(Vec::len), Some(4));
    assert_eq!(shards["Shards"][3]["AdjacentParentShardId"], "shardId-000000000002");
    let (_, state) = control.call("GET", "state", &json!({})).await;
    assert_eq!(state["streams"][0]["name"], "s");
    assert_eq!(state["streams"][0]["shards"].as_array().map(Vec::len), Some(4));
    world.local.stop().await;
}

#[tokio::test]
async fn mistakes_are_answered_with_what_is_wrong() {
    let (world, _, mut control) = start().await;
    for (method, path, body, status) in [
        ("POST", "faults", json!({"effect": "Explode"}), 400),
        ("POST", "faults", json!({"effect": "Throttle", "strem": "s"}), 400),
        ("DELETE", "faults/77", json!({}), 404),
        ("POST", "clock", json!({"advance_ms": 5}), 409),
        ("POST", "reshard", json!({"stream": "absent", "split": "shardId-000000000000"}), 400),
        ("POST", "reshard", json!({"stream": "s"}), 400),
        ("POST", "expire-iterators", json!({"stream": "absent"}), 400),
        ("GET", "coffee", json!({}), 404),
    ] {
        let (got, answer) = control.call(method, path, &body).await;
        assert_eq!(got, status, "{method} {path} {body}: {answer}");
        assert!(answer["error"].is_string(), "{method} {path} {body}: {answer}");
    }
    world.local.stop().await;
}

#[tokio::test]
async fn a_manual_clock_is_moved_by_request() {
    let clock = anabranch_local::Clock::manual(1_700_000_000_000);
    let options = anabranch_local::EngineOptions::default();
    let local = anabranch_local::Local::builder().with_clock(clock).with_options(options);
    let local = local.start().await.expect("a server");
    let mut wire = RawConnection::connect(local.address()).await;
    let mut control = Control(RawConnection::connect(local.address()).await);
    wire.kinesis("CreateStream", r#"{"StreamName":"s","ShardCount":1}"#).await;
    let status = async |wire: &mut RawConnection| {
        let summary = wire.kinesis("DescribeStreamSummary", r#"{"StreamName":"s"}"#).await.json();
        summary["StreamDescriptionSummary"]["StreamStatus"].clone()
    };
    assert_eq!(status(&mut wire).await, "CREATING");
    let (code, body) = control.call("POST", "clock", &json!({"advance_ms": 60_000})).await;
    assert_eq!((code, body["now_ms"].as_u64()), (200, Some(1_700_000_060_000)));
    assert_eq!(status(&mut wire).await, "ACTIVE");
    local.stop().await;
}
