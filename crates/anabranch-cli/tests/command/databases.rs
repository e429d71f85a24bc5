//! Tests of the commands with leases in a real PostgreSQL.

use crate::postgres_server::Server;
use crate::stage::{CommandFixture, CommandResult, RunningCommand};
use serde_json::Value;

fn put(stage: &CommandFixture, from: usize, to: usize) {
    let line = |n: usize| format!("{{\"key\":\"k{}\",\"data\":\"{n}\"}}", n % 5);
    stage.run("put orders", &(from..to).map(line).collect::<Vec<_>>().join("\n")).ok();
}

fn consumer(stage: &CommandFixture, store: &str) -> RunningCommand {
    let words = "consume orders --app app --json --lease-time 2s --grace-period 5s --leases";
    stage.spawn(&format!("{words} {store}"))
}

/// Consumes `count` records and stops gracefully.
fn consume(stage: &CommandFixture, store: &str, count: usize) {
    let mut running = consumer(stage, store);
    running.lines(count);
    let ran = running.stop().ok();
    assert_eq!(ran.out, "", "{store}: more than {count} came");
}

fn leases(stage: &CommandFixture, store: &str, words: &str) -> CommandResult {
    stage.run(&format!("leases app --leases {store} --stream orders --lease-time 2s {words}"), "")
}

#[track_caller]
fn keeps_the_secret(ran: &CommandResult) {
    // The password as encoded in the URL, and in plain text.
    for secret in ["s3cret", Server::password()] {
        assert!(!ran.out.contains(secret) && !ran.err.contains(secret), "{ran:?}");
    }
}

#[test]
fn an_application_lives_in_a_database_and_is_looked_after_there() {
    let Some(server) = Server::shared() else { return };
    let (stage, store) = (CommandFixture::start(&["orders:1"]), server.fresh_database());
    let empty = leases(&stage, &store, "");
    assert_eq!(empty.code, Some(2), "{empty:?}");
    assert!(empty.err.contains("holds no leases yet"), "{empty:?}");
    keeps_the_secret(&empty);
    put(&stage, 0, 10);
    consume(&stage, &store, 10);
    stage.split("orders");
    put(&stage, 10, 20);
    let mut running = consumer(&stage, &format!("postgres:{store}"));
    running.lines(10);
    let alive = leases(&stage, &store, "reset --to trim --yes");
    assert_eq!(alive.code, Some(2), "{alive:?}");
    assert!(alive.err.contains("are alive"), "{alive:?}");
    let doctor = format!("doctor orders app --leases {store} --watch 3s");
    stage.run(&doctor, "").ok();
    running.signal("KILL");
    running.wait();
    let sick = stage.run(&doctor, "");
    assert_eq!(sick.code, Some(1), "{sick:?}");
    assert!(sick.out.contains("sends no heartbeats"), "{sick:?}");
    keeps_the_secret(&sick);
    let reset = leases(&stage, &store, "reset --to trim --snapshot before.json --yes").ok();
    keeps_the_secret(&reset);
    consume(&stage, &store, 20);
    leases(&stage, &store, "restore before.json --yes").ok();
}

#[test]
fn an_application_moves_from_store_to_store_and_nothing_comes_twice() {
    let Some(server) = Server::shared() else { return };
    let stage = CommandFixture::start(&["orders:2"]);
    let database = server.fresh_database();
    let mut read = 0;
    let mut last = "sqlite:one.db".to_owned();
    for next in [&database, "dynamodb:app", &server.fresh_database(), "sqlite:two.db", "kcl:java"] {
        put(&stage, read, read + 10);
        consume(&stage, &last, 10);
        let copied = leases(&stage, &last, &format!("copy --to {next} --yes")).ok();
        keeps_the_secret(&copied);
        read += 10;
        last = next.to_owned();
    }
    put(&stage, read, read + 10);
    consume(&stage, &last, 10);
}

#[test]
fn a_database_that_is_not_there_is_named_without_its_password() {
    let Some(server) = Server::shared() else { return };
    let stage = CommandFixture::start(&["orders:1"]);
    for (url, expected) in [
        (server.url("nowhere"), "nowhere"),
        (server.url("postgres").replace("s3cret", "wrong"), "password"),
        ("postgres://me:s3cret@127.0.0.1:9/x".to_owned(), "cannot reach lease store"),
    ] {
        for words in ["consume orders --app app --leases", "leases app --leases"] {
            let ran = stage.run(&format!("{words} {url}"), "");
            assert_eq!(ran.code, Some(2), "{ran:?}");
            assert_eq!(ran.err.trim().lines().count(), 1, "{ran:?}");
            assert!(ran.err.contains(expected), "{expected:?} is not in {ran:?}");
            keeps_the_secret(&ran);
        }
    }
}

#[test]
fn a_copy_that_was_killed_goes_on_and_one_that_is_complete_is_left_alone() {
    let Some(server) = Server::shared() else { return };
    let (stage, to) = (CommandFixture::start(&["orders:3"]), server.fresh_database());
    put(&stage, 0, 30);
    consume(&stage, "sqlite:leases.db", 30);
    leases(&stage, "sqlite:leases.db", &format!("copy --to {to} --yes")).ok();
    // The state after a kill: one row is missing, and the stream is not marked.
    let database = to.rsplit('/').next().unwrap();
    server.sql(database, "DELETE FROM anabranch.stream");
    server.sql(database, "DELETE FROM anabranch.lease WHERE shard LIKE '%2'");
    leases(&stage, "sqlite:leases.db", &format!("copy --to {to} --yes")).ok();
    let twice = leases(&stage, "sqlite:leases.db", &format!("copy --to {to} --yes"));
    assert_eq!(twice.code, Some(2), "{twice:?}");
    put(&stage, 30, 40);
    consume(&stage, &to, 10);
    let listed = leases(&stage, &to, "list --json").ok();
    let all: Value = serde_json::from_str(&listed.out).unwrap();
    assert_eq!(all["streams"][0]["leases"].as_array().unwrap().len(), 3, "{listed:?}");
}
