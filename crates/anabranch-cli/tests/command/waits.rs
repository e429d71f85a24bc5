//! Tests with services that never answer: a notice names the service, and the final error suggests
//! a remedy.

use crate::stage::{CommandFixture, RunningCommand, program, until};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;

#[test]
fn whoever_waits_for_a_service_that_never_answers_is_told_whom_and_what_for() {
    // Connections are established but never accepted.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    for (words, call) in [
        ("put orders", "DescribeStreamSummary"),
        ("tail orders", "DescribeStreamSummary"),
        ("consume orders --app a --leases memory", "DescribeStreamSummary"),
        ("leases app --leases dynamodb:rows", ""),
    ] {
        let mut command = program();
        command.args(words.split(' ')).args(["--endpoint", &endpoint]);
        let mut running = RunningCommand::start(command);
        let mut said = String::new();
        BufReader::new(running.child.stderr.take().unwrap()).read_line(&mut said).unwrap();
        running.child.kill().unwrap();
        running.child.wait().unwrap();
        let expected = format!("waiting for {endpoint} to answer {call}");
        assert!(said.starts_with(&expected), "{words}: {said:?}");
    }
}

#[test]
fn a_lease_table_that_somebody_deletes_ends_the_workers_with_the_way_out() {
    let stage = CommandFixture::start(&["orders:2"]);
    for store in ["dynamodb:rows", "kcl:rows-of-java"] {
        let table = store.split_once(':').unwrap().1;
        stage.run("put orders", "{\"key\":\"a\",\"data\":\"1\"}\n").ok();
        let words = format!("consume orders --app a --lease-time 1s --leases {store}");
        let mut running = stage.spawn(&words);
        running.lines(1);
        stage.dynamodb("DeleteTable", &json!({ "TableName": table }));
        until("the end", || running.child.try_wait().unwrap().is_some());
        let ran = running.wait();
        assert_eq!(ran.code, Some(1), "{store}: {ran:?}");
        let last = ran.err.lines().last().unwrap();
        for part in ["error: ", "was deleted", table, "restore it", "start again"] {
            assert!(last.contains(part), "{store}: {part} is not in {last}");
        }
    }
}

#[test]
fn a_name_that_no_table_can_have_is_answered_with_the_rule() {
    let stage = CommandFixture::start(&["orders:1"]);
    for store in ["dynamodb:ab", "kcl:a%20b"] {
        let ran = stage.run(&format!("consume orders --app a --leases {store}"), "");
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains("3 to 255 characters"), "{ran:?}");
        assert!(!ran.err.contains("is not usable"), "{ran:?}");
    }
}
