//! Tests of dead letters and `anabranch redrive`.

use crate::postgres_server::Server;
use crate::stage::{CommandFixture, CommandResult, RunningCommand, until};

/// Returns ten records of two keys, in order.
fn lines() -> String {
    let line = |n: usize| format!("{{\"key\":\"k{}\",\"data\":\"{n}\"}}\n", n % 2);
    (0..10).map(line).collect()
}

/// Returns a program that fails the records matched by `test`, and logs the others in the file
/// `log`.
fn program(test: &str) -> String {
    format!(
        "while read -r line; do case \"$line\" in {test}) echo 'fail: not today';; \
         *) echo \"$line\" >> log; echo ok;; esac; done"
    )
}

fn consumer(stage: &CommandFixture, park: &str, test: &str) -> RunningCommand {
    let mut command = stage.command("consume orders --app app --leases sqlite:leases.db");
    command.args(["--dead-letter", park, "--attempts", "1", "--exec", &program(test)]);
    RunningCommand::start(command)
}

fn redrive(stage: &CommandFixture, place: &str, test: &str) -> CommandResult {
    let mut command = stage.command("redrive");
    command.args([place, "--exec", &program(test)]);
    crate::stage::run(command, "")
}

/// Returns the data of the records that a program has done, in order, and removes the log.
fn done(stage: &CommandFixture) -> Vec<usize> {
    let path = stage.folder.path().join("log");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let _ = std::fs::remove_file(path);
    let data = |line: &str| {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        record["data"].as_str().unwrap().parse().unwrap()
    };
    text.lines().map(data).collect()
}

fn done_count(stage: &CommandFixture) -> usize {
    let text = std::fs::read_to_string(stage.folder.path().join("log")).unwrap_or_default();
    text.lines().count()
}

/// Sets the records of one key aside and redrives them: first some fail, then none.
fn check(stage: &CommandFixture, place: &str) {
    stage.run("put orders", &lines()).ok();
    let running = consumer(stage, place, "*k1*");
    until("the records of the other key", || done_count(stage) >= 5);
    let words = "leases app --leases sqlite:leases.db";
    let last = || stage.run(&format!("{words} show 0 --json"), "").ok().out;
    let mut stands = String::new();
    until("a checkpoint that stands", || {
        let before = std::mem::replace(&mut stands, last());
        std::thread::sleep(std::time::Duration::from_millis(1_500));
        before == stands
    });
    let ran = running.stop().ok();
    assert!(ran.err.contains("became a dead letter: not today"), "{place}: {ran:?}");
    assert_eq!(done(stage), [0, 2, 4, 6, 8], "{place}");

    let half = redrive(stage, place, "*'\"data\":\"5\"'*");
    assert_eq!(half.code, Some(1), "{place}: {half:?}");
    assert!(
        half.err.contains("2 records were redriven, 3 dead letters remain"),
        "{place}: {half:?}"
    );
    assert!(half.err.contains("key \"k1\": not today"), "{place}: {half:?}");
    assert_eq!(done(stage), [1, 3], "{place}: nothing of the key passes what failed");

    let whole = redrive(stage, place, "nothing").ok();
    assert!(
        whole.err.contains("3 records were redriven, 0 dead letters remain"),
        "{place}: {whole:?}"
    );
    assert_eq!(done(stage), [5, 7, 9], "{place}");
    let again = redrive(stage, place, "nothing").ok();
    assert_eq!(done(stage), Vec::<usize>::new(), "{place}: {again:?}");
}

#[test]
fn parked_records_of_a_file_and_a_table_are_redriven_in_order_until_one_fails() {
    for place in ["parked.jsonl", "sqlite:parked.db#parked"] {
        check(&CommandFixture::start(&["orders:1"]), place);
    }
}

#[test]
fn parked_records_of_a_database_are_redriven_in_order_until_one_fails() {
    let Some(server) = Server::shared() else { return };
    check(&CommandFixture::start(&["orders:1"]), &format!("{}#parked", server.fresh_database()));
}

/// Checks that a redrive in progress excludes a second one, and only while it lives.
fn check_alone(place: &str) {
    let stage = CommandFixture::start(&["orders:1"]);
    stage.run("put orders", &lines()).ok();
    let running = consumer(&stage, place, "*k1*");
    until("the records of the other key", || done_count(&stage) >= 5);
    // A record behind the last dead letter is done after it.
    stage.run("put orders", "{\"key\":\"k0\",\"data\":\"10\"}").ok();
    until("the last record", || done_count(&stage) >= 6);
    running.stop().ok();
    let _ = done(&stage);
    let mut command = stage.command("redrive");
    // It never answers, and exits when its input ends.
    let stuck = "read -r line; echo \"$line\" >> log; read -r next";
    command.args([place, "--exec", stuck]);
    let first = RunningCommand::start(command);
    until("the first record", || done_count(&stage) >= 1);
    let second = redrive(&stage, place, "nothing");
    assert_eq!(second.code, Some(2), "{place}: {second:?}");
    assert!(second.err.contains("another redrive of"), "{place}: {second:?}");
    assert_eq!(done(&stage), [1], "{place}: nothing was redriven by the second");
    first.signal("KILL");
    first.wait();
    until("the lock of the killed one to go", || redrive(&stage, place, "nothing").code != Some(2));
    assert_eq!(done(&stage), [1, 3, 5, 7, 9], "{place}");
}

#[test]
fn one_redrive_at_a_time_works_on_a_file_or_a_table() {
    for place in ["parked.jsonl", "sqlite:parked.db#parked"] {
        check_alone(place);
    }
}

#[test]
fn one_redrive_at_a_time_works_on_a_table_of_a_database() {
    let Some(server) = Server::shared() else { return };
    check_alone(&format!("{}#parked", server.fresh_database()));
}

#[test]
fn what_was_put_aside_in_a_stream_is_given_as_it_was_by_a_consumer_of_it() {
    let stage = CommandFixture::start(&["orders:1", "aside:1"]);
    stage.run("put orders", &lines()).ok();
    let running = consumer(&stage, "stream:aside", "*k1*");
    until("parked records", || stage.stored("aside").len() >= 5);
    running.stop().ok();
    let _ = done(&stage);
    let mut command =
        stage.command("consume aside --from-dead-letter --app again --leases sqlite:leases.db");
    command.args(["--exec", &program("nothing")]);
    let running = RunningCommand::start(command);
    until("all of them", || done_count(&stage) >= 5);
    running.stop().ok();
    assert_eq!(done(&stage), [1, 3, 5, 7, 9]);
    let hint = redrive(&stage, "stream:aside", "nothing");
    assert_eq!(hint.code, Some(2), "{hint:?}");
    assert!(hint.err.contains("anabranch consume aside --from-dead-letter"), "{hint:?}");
}

#[test]
fn parked_records_that_are_printed_are_done() {
    let stage = CommandFixture::start(&["orders:1"]);
    stage.run("put orders", &lines()).ok();
    let running = consumer(&stage, "parked.jsonl", "*k1*");
    let parked = stage.folder.path().join("parked.jsonl");
    let count = || std::fs::read_to_string(&parked).unwrap_or_default().lines().count();
    until("parked records", || count() >= 5);
    running.stop().ok();
    let printed = stage.run("redrive parked.jsonl --print", "").ok();
    assert_eq!(printed.out.lines().count(), 5, "{printed:?}");
    assert!(printed.out.starts_with("{\"shard\":\"shardId-000000000000\""), "{printed:?}");
    assert!(!parked.exists());
    let nothing = stage.run("redrive parked.jsonl --print", "").ok();
    assert!(nothing.err.contains("no dead letters in parked.jsonl"), "{nothing:?}");
}

#[test]
fn a_place_for_parked_records_that_can_not_be_is_refused_before_anything_is_read() {
    let stage = CommandFixture::start(&["orders:1"]);
    for (park, expected) in [
        ("no/folder/file", "there is no folder no/folder"),
        ("sqlite:parked.db", "append it after a #"),
        ("sqlite:parked.db#a-b", "\"a-b\" is not a valid name of a dead-letter table"),
        ("stream:orders", "orders can't hold its own dead letters"),
        (
            "stream:arn:aws:kinesis:us-east-1:000000000000:stream/orders",
            "orders can't hold its own dead letters",
        ),
        ("stream:nowhere", "there is no stream nowhere"),
        ("postgres://me:secret@127.0.0.1:9/x#parked", "can't be used"),
    ] {
        let words =
            format!("consume orders --app app --leases sqlite:leases.db --dead-letter {park}");
        let ran = stage.run(&words, "");
        assert_eq!(ran.code, Some(2), "{park}: {ran:?}");
        assert!(ran.err.contains(expected), "{park}: {ran:?}");
        assert!(!ran.err.contains("secret"), "{park}: {ran:?}");
        assert_eq!(ran.err.trim().lines().count(), 1, "{park}: {ran:?}");
        assert!(!stage.folder.path().join("leases.db").exists(), "{park} made leases");
    }
}
