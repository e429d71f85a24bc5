//! Tests of `anabranch doctor`.

use crate::stage::{CommandFixture, CommandResult};
use serde_json::{Value, json};

fn doctor(stage: &CommandFixture, store: &str, words: &str) -> CommandResult {
    stage.run(&format!("doctor orders app --leases {store} --watch 2s {words}"), "")
}

fn kinds(ran: &CommandResult) -> Vec<String> {
    let found: Vec<Value> = serde_json::from_str(&ran.out).unwrap();
    found.iter().map(|finding| finding["kind"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_healthy_application_has_nothing_and_a_dead_worker_is_found_with_its_mend() {
    for store in ["sqlite:leases.db", "dynamodb:app", "kcl:app"] {
        let stage = CommandFixture::start(&["orders:1"]);
        let lines = "{\"key\":\"a\",\"data\":\"1\"}\n";
        stage.run("put orders", lines).ok();
        let consume =
            format!("consume orders --app app --leases {store} --lease-time 2s --grace-period 5s");
        let mut running = stage.spawn(&consume);
        running.lines(1);
        let healthy = doctor(&stage, store, "").ok();
        assert!(healthy.out.contains("no problems found"), "{store}: {healthy:?}");
        running.signal("KILL");
        running.wait();
        let sick = doctor(&stage, store, "--json");
        assert_eq!(sick.code, Some(1), "{store}: {sick:?}");
        assert_eq!(kinds(&sick), ["dead-owner"], "{store}: {sick:?}");
        // The suggested fix works.
        assert!(sick.out.contains("anabranch leases app release shardId-000000000000 --yes"));
        let mend = "release shardId-000000000000 --yes --lease-time 2s";
        stage.run(&format!("leases app --leases {store} --stream orders {mend}"), "").ok();
        let mended = doctor(&stage, store, "--json");
        assert_eq!(kinds(&mended), ["no-worker"], "{store}: {mended:?}");
    }
}

#[test]
fn a_hole_in_a_java_table_is_found_and_its_mend_makes_the_lease() {
    let stage = CommandFixture::start(&["orders:2"]);
    stage.run("put orders", "{\"key\":\"a\",\"data\":\"1\"}\n").ok();
    let mut running = stage.spawn("consume orders --app app --leases kcl:app --lease-time 2s");
    running.lines(1);
    running.stop().ok();
    let key = json!({"leaseKey": {"S": "shardId-000000000001"}});
    stage.dynamodb("DeleteItem", &json!({"TableName": "app", "Key": key}));
    let update = json!({
        "TableName": "app", "Key": {"leaseKey": {"S": "shardId-000000000000"}},
        "UpdateExpression": "SET checkpointOwner = :j",
        "ExpressionAttributeValues": {":j": {"S": "java-1"}},
    });
    stage.dynamodb("UpdateItem", &update);
    let sick = doctor(&stage, "kcl:app", "--json");
    assert_eq!(sick.code, Some(1), "{sick:?}");
    assert_eq!(kinds(&sick), ["hole", "no-worker", "orphaned-hand-over"], "{sick:?}");
    let words = "leases app --leases kcl:app --stream orders --lease-time 2s";
    stage.run(&format!("{words} reset --shard shardId-000000000001 --to trim --yes"), "").ok();
    assert!(!kinds(&doctor(&stage, "kcl:app", "--json")).contains(&"hole".to_owned()));
}
