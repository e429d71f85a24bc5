//! Tests with the table of a Java KCL application for several streams: leases, shards, doctor,
//! consume.

use crate::stage::{CommandFixture, CommandResult, until};
use serde_json::{Value, json};

/// The streams, and the table as Java leaves it after reading them.
struct Table {
    stage: CommandFixture,
    /// KCL's id of the stream `orders`.
    orders: String,
}

impl Table {
    fn new() -> Self {
        let stage = CommandFixture::start(&["orders:2", "clicks:1"]);
        for (stream, count) in [("orders", 8), ("clicks", 3)] {
            let line = |n: usize| format!("{{\"key\":\"k{n}\",\"data\":\"{n}\"}}");
            let lines: Vec<_> = (0..count).map(line).collect();
            stage.run(&format!("put {stream}"), &lines.join("\n")).ok();
        }
        let table = json!({
            "TableName": "app", "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{"AttributeName": "leaseKey", "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        });
        stage.dynamodb("CreateTable", &table);
        let (orders, clicks) = (id(&stage, "orders"), id(&stage, "clicks"));
        let table = Self { stage, orders };
        for (stream, shard, owner) in [
            (&table.orders, "shardId-000000000000", Some("java-1")),
            (&table.orders, "shardId-000000000001", None),
            (&clicks, "shardId-000000000000", Some("java-1")),
        ] {
            table.put_row(stream, shard, owner);
        }
        table
    }

    /// Writes a row as KCL's serializer for several streams does.
    fn put_row(&self, stream: &str, shard: &str, owner: Option<&str>) {
        let name = stream.split(':').nth(1).unwrap();
        let reply = self.stage.call("ListShards", &json!({"StreamName": name}));
        let shards = reply["Shards"].as_array().unwrap();
        let keys = shards.iter().find(|it| it["ShardId"] == shard).unwrap()["HashKeyRange"].clone();
        let mut item = json!({
            "leaseKey": {"S": format!("{stream}:{shard}")},
            "streamName": {"S": stream}, "shardId": {"S": shard},
            "leaseCounter": {"N": "7"}, "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "checkpoint": {"S": "TRIM_HORIZON"}, "checkpointSubSequenceNumber": {"N": "0"},
            "startingHashKey": {"S": keys["StartingHashKey"]},
            "endingHashKey": {"S": keys["EndingHashKey"]},
        });
        if let Some(owner) = owner {
            item["leaseOwner"] = json!({"S": owner});
        }
        self.stage.dynamodb("PutItem", &json!({"TableName": "app", "Item": item}));
    }

    fn row(&self, key: &str) -> Value {
        let key = json!({"leaseKey": {"S": key}});
        let ask = json!({"TableName": "app", "Key": key, "ConsistentRead": true});
        self.stage.dynamodb("GetItem", &ask)["Item"].clone()
    }

    fn leases(&self, words: &str) -> CommandResult {
        self.stage.run(&format!("leases app --leases kcl:app --lease-time 1s {words}"), "")
    }
}

/// Returns KCL's id of a stream.
fn id(stage: &CommandFixture, stream: &str) -> String {
    let reply = stage.call("DescribeStreamSummary", &json!({"StreamName": stream}));
    let summary = &reply["StreamDescriptionSummary"];
    let account = summary["StreamARN"].as_str().unwrap().split(':').nth(4).unwrap().to_owned();
    let created = summary["StreamCreationTimestamp"].as_f64().unwrap().floor();
    format!("{account}:{stream}:{created}")
}

#[test]
fn every_stream_of_the_table_is_listed_under_its_name() {
    let table = Table::new();
    let all: Value = serde_json::from_str(&table.leases("list --json").ok().out).unwrap();
    let streams: Vec<_> = all["streams"].as_array().unwrap().iter().collect();
    let found: Vec<_> = streams
        .iter()
        .map(|it| (it["stream"].as_str().unwrap(), it["leases"].as_array().unwrap().len()))
        .collect();
    assert_eq!(found, [("clicks", 1), ("orders", 2)]);
    let one = table.leases("show 1").ok();
    assert!(one.out.contains("orders"), "{one:?}");
    let both = table.leases("show 0");
    assert_eq!(both.code, Some(2), "{both:?}");
    assert!(both.err.contains("choose one with --stream"), "{both:?}");
    let by_id = table.leases(&format!("show 0 --stream {}", table.orders)).ok();
    assert!(by_id.out.contains("java-1"), "{by_id:?}");
    let unknown = table.leases("--stream ordres");
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    assert!(unknown.err.contains("ordres is not one of them (clicks, orders)"), "{unknown:?}");
}

#[test]
fn shards_and_doctor_see_the_rows_of_their_stream_alone() {
    let table = Table::new();
    let shards = table.stage.run("shards orders --app app --leases kcl:app --json", "").ok();
    let rows: Value = serde_json::from_str(&shards.out).unwrap();
    assert_eq!(rows[0]["owner"], "java-1", "{shards:?}");
    assert_eq!(rows[1]["standing"], "free", "{shards:?}");
    let doctor = |stream: &str| {
        let words = format!("doctor {stream} app --leases kcl:app --watch 1s --json");
        let ran = table.stage.run(&words, "");
        let found: Vec<Value> = serde_json::from_str(&ran.out).unwrap();
        let kinds = found.iter().map(|it| it["kind"].as_str().unwrap().to_owned());
        (kinds.collect::<Vec<_>>(), ran)
    };
    let (kinds, ran) = doctor("orders");
    assert_eq!(kinds, ["dead-owner"], "{ran:?}");
    // The suggested fix works, and leaves the other stream alone.
    table.leases("release shardId-000000000000 --yes --stream orders").ok();
    assert!(table.row(&format!("{}:shardId-000000000000", table.orders))["leaseOwner"].is_null());
    assert_eq!(doctor("orders").0, ["no-worker"]);
    assert_eq!(doctor("clicks").0, ["dead-owner"]);
}

#[test]
fn a_reset_writes_rows_that_java_reads_and_only_those_of_its_stream() {
    let table = Table::new();
    let refused = table.leases("reset --to latest --yes");
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("clicks, orders: choose one with --stream"), "{refused:?}");
    let other = id(&table.stage, "clicks");
    let before = table.row(&format!("{other}:shardId-000000000000"));
    let key = json!({"leaseKey": {"S": format!("{}:shardId-000000000001", table.orders)}});
    table.stage.dynamodb("DeleteItem", &json!({"TableName": "app", "Key": key}));
    table.leases("reset --to latest --yes --stream orders").ok();
    for shard in ["shardId-000000000000", "shardId-000000000001"] {
        let row = table.row(&format!("{}:{shard}", table.orders));
        assert_eq!(row["checkpoint"]["S"], "LATEST", "{row}");
        assert_eq!(row["streamName"]["S"], table.orders.as_str(), "{row}");
        assert_eq!(row["shardId"]["S"], shard, "{row}");
    }
    assert_eq!(table.row(&format!("{other}:shardId-000000000000")), before);
}

#[test]
fn the_leases_of_several_streams_move_to_another_store_together() {
    let table = Table::new();
    table.leases("copy --to sqlite:leases.db --yes").ok();
    for (stream, count) in [("orders", 8), ("clicks", 3)] {
        let words = format!("consume {stream} --app app --leases sqlite:leases.db --json");
        let mut running = table.stage.spawn(&words);
        running.lines(count);
        assert_eq!(running.stop().ok().out, "", "{stream}");
    }
    let to_one = table.leases("copy --to kcl:other --yes");
    assert_eq!(to_one.code, Some(2), "{to_one:?}");
    assert!(to_one.err.contains("choose one with --stream"), "{to_one:?}");
}

#[test]
fn consume_reads_its_stream_of_the_table_and_leaves_the_others_alone() {
    let table = Table::new();
    let consume = "--app app --leases kcl:app --lease-time 1s --json";
    let other = format!("{}:shardId-000000000000", id(&table.stage, "clicks"));
    let before = table.row(&other);
    let mut running = table.stage.spawn(&format!("consume orders {consume}"));
    running.lines(8);
    // The rows of the child shards match those that Java would create.
    table.stage.split("orders");
    let late = "{\"key\":\"k0\",\"data\":\"late\"}\n{\"key\":\"k1\",\"data\":\"late\"}";
    table.stage.run("put orders", late).ok();
    running.lines(2);
    until("the parent's end", || {
        let row = table.row(&format!("{}:shardId-000000000000", table.orders));
        row["checkpoint"]["S"] == "SHARD_END"
    });
    assert_eq!(running.stop().ok().out, "");
    for shard in ["shardId-000000000001", "shardId-000000000002", "shardId-000000000003"] {
        let row = table.row(&format!("{}:{shard}", table.orders));
        assert_eq!(row["streamName"]["S"], table.orders.as_str(), "{row}");
        assert_eq!(row["shardId"]["S"], shard, "{row}");
        assert!(row["leaseOwner"].is_null(), "{row}");
    }
    assert_eq!(table.row(&other), before);
    assert!(table.row("shardId-000000000000").is_null(), "no row of the other mode");
    // It resumes at its checkpoint, also when given KCL's id of the stream.
    table.stage.run("put orders", "{\"key\":\"k0\",\"data\":\"new\"}").ok();
    let mut running = table.stage.spawn(&format!("consume {} {consume}", table.orders));
    assert!(running.lines(1)[0].contains("\"data\":\"new\""));
    assert_eq!(running.stop().ok().out, "");
}

#[test]
fn a_stream_that_the_table_does_not_have_is_not_consumed_from_it() {
    let table = Table::new();
    table.stage.call("CreateStream", &json!({"StreamName": "views", "ShardCount": 1}));
    let older = "000000000000:views:1";
    let check = |words: &str, expected: &str| {
        let ran = table.stage.run(&format!("consume {words} --app app"), "");
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains(expected), "{words}: {}", ran.err);
    };
    check("views --leases kcl:app", "the table app holds several streams, and views is not one");
    check("1:orders:5 --leases kcl:app", "1:orders:5 is not one of them");
    check("1:orders:5 --leases memory", "give the stream as orders");
    let row = json!({
        "leaseKey": {"S": format!("{older}:shardId-000000000000")}, "streamName": {"S": older},
        "shardId": {"S": "shardId-000000000000"}, "leaseCounter": {"N": "7"},
        "checkpoint": {"S": "TRIM_HORIZON"}, "checkpointSubSequenceNumber": {"N": "0"},
    });
    table.stage.dynamodb("PutItem", &json!({"TableName": "app", "Item": row}));
    check("views --leases kcl:app", "leases of 000000000000:views:1 do not belong to the stream");
    let scan = table.stage.dynamodb("Scan", &json!({"TableName": "app"}));
    assert_eq!(scan["Count"], 4, "nothing was written: {scan}");
}
