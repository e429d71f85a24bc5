//! Missing permissions and expired credentials: every command reports them on one line.

use crate::stage::{CommandFixture, CommandResult, program, run};
use serde_json::json;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Stdio;

/// Commands that read a stream or leases. Two of them would create a file.
const COMMANDS: [&str; 6] = [
    "put orders --json",
    "tail orders --until-caught-up",
    "cp stream:orders copied",
    "consume orders --app app --leases sqlite:new.db",
    "shards orders",
    "doctor orders app --leases sqlite:leases.db",
];

#[track_caller]
fn check(words: &str, ran: &CommandResult, expected: &[&str]) {
    assert_eq!(ran.code, Some(2), "{words}: {ran:?}");
    assert_eq!(ran.err.trim().lines().count(), 1, "{words}: {ran:?}");
    assert_eq!(ran.out, "", "{words}: {ran:?}");
    for part in expected {
        assert!(ran.err.contains(part), "{words}: {part:?} is not in {ran:?}");
    }
}

/// Returns a stream with one record, and an application that has read it.
fn stage() -> CommandFixture {
    let stage = CommandFixture::start(&["orders:1"]);
    stage.run("put orders", "{\"key\":\"a\",\"data\":\"1\"}\n").ok();
    let mut running = stage.spawn("consume orders --app app --leases sqlite:leases.db");
    running.lines(1);
    running.stop().ok();
    stage
}

#[test]
fn who_may_not_read_the_stream_is_told_which_right_is_missing() {
    let stage = stage();
    stage.fault(&json!({"effect": "Deny"}));
    // `put` needs no permission to describe the stream and has its own test.
    for words in &COMMANDS[1..] {
        let ran = stage.run(words, "{\"key\":\"a\",\"data\":\"2\"}\n");
        check(words, &ran, &["is denied at", "the credentials need kinesis:", "on orders"]);
    }
    for file in ["copied", "new.db"] {
        assert!(!stage.folder.path().join(file).exists(), "{file} was made");
    }
}

#[test]
fn credentials_that_have_expired_are_to_be_renewed() {
    let stage = stage();
    stage.fault(&json!({"effect": "ExpireToken"}));
    for words in COMMANDS {
        let ran = stage.run(words, "{\"key\":\"a\",\"data\":\"2\"}\n");
        check(words, &ran, &["the credentials can't be used at", "expired", "renew them"]);
    }
    for file in ["copied", "new.db"] {
        assert!(!stage.folder.path().join(file).exists(), "{file} was made");
    }
}

#[test]
fn a_producer_that_may_only_put_needs_no_other_right() {
    let stage = stage();
    for operation in ["DescribeStreamSummary", "ListShards", "ListStreams"] {
        stage.fault(&json!({"operation": operation, "effect": "Deny"}));
    }
    stage.run("put orders", "{\"key\":\"a\",\"data\":\"2\"}\n").ok();
}

#[test]
fn a_consumer_that_may_only_put_into_the_stream_for_parked_records_parks_there() {
    let stage = CommandFixture::start(&["orders:1", "aside:1"]);
    stage.run("put orders", "{\"key\":\"a\",\"data\":\"1\"}\n").ok();
    for operation in ["DescribeStreamSummary", "ListShards"] {
        stage.fault(&json!({"operation": operation, "stream": "aside", "effect": "Deny"}));
    }
    let mut command = stage.command("consume orders --app app --leases memory");
    command.args(["--dead-letter", "stream:aside", "--attempts", "1", "--exec"]);
    command.arg("while read -r line; do echo 'fail: not today'; done");
    let running = crate::stage::RunningCommand::start(command);
    crate::stage::until("the parked record", || stage.records_of_first_shard("aside") == 1);
    running.stop().ok();
}

#[test]
fn who_may_not_put_is_told_so_for_each_record_and_does_not_wait_for_ever() {
    let stage = stage();
    for operation in ["PutRecord", "PutRecords"] {
        stage.fault(&json!({"operation": operation, "effect": "Deny"}));
    }
    let ran = stage.run("put orders", "{\"key\":\"a\",\"data\":\"2\"}\n");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for part in ["line 1", "AccessDenied", "0 placed", "1 refused", "1 records are not in orders"] {
        assert!(ran.err.contains(part), "{part:?} is not in {ran:?}");
    }
}

#[test]
fn who_may_not_put_is_told_so_although_more_lines_may_come() {
    let stage = stage();
    stage.fault(&json!({"operation": "PutRecords", "effect": "DisableKey"}));
    let mut command = stage.command("put orders");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"{\"key\":\"a\",\"data\":\"2\"}\n").unwrap();
    let ran = child.wait_with_output().unwrap();
    drop(input);
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(1), "{said}");
    for part in ["KMSDisabledException", "1 refused", "orders refuses this producer"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}

#[test]
fn a_right_that_ends_while_records_flow_is_waited_for() {
    let stage = stage();
    stage.fault(&json!({"operation": "PutRecords", "effect": "Deny", "skip": 1, "count": 2}));
    let lines = (2..5).map(|number| json!({"key": "a", "data": number.to_string()}).to_string());
    let ran = stage.run("put orders", &lines.collect::<Vec<_>>().join("\n")).ok();
    for part in
        ["orders refuses producer", "AccessDenied", "orders accepts records again", "3 placed"]
    {
        assert!(ran.err.contains(part), "{part:?} is not in {ran:?}");
    }
    assert_eq!(ran.err.matches("refuses producer").count(), 1, "{ran:?}");
    assert_eq!(stage.stored("orders").len(), 4);
}

#[test]
fn a_record_whose_time_is_over_is_refused_with_the_reason() {
    let stage = stage();
    stage.fault(&json!({"operation": "PutRecords", "effect": "Deny"}));
    let ran = stage.run("put orders --timeout 6s", "{\"key\":\"a\",\"data\":\"2\"}\n");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for part in ["line 1", "AccessDenied", "1 refused", "in 6."] {
        assert!(ran.err.contains(part), "{part:?} is not in {ran:?}");
    }
}

#[test]
fn who_may_look_and_not_read_is_told_so_by_what_reads() {
    let stage = stage();
    stage.fault(&json!({"operation": "GetRecords", "effect": "Deny"}));
    for words in [
        "tail orders --until-caught-up",
        "cp stream:orders -",
        "cp stream:orders file",
        "consume orders --app app --leases memory",
    ] {
        let ran = stage.run(&format!("{words} --since trim"), "");
        assert_eq!(ran.code, Some(2), "{words}: {ran:?}");
        let said = ran.err.lines().last().unwrap();
        assert!(said.contains("the credentials need kinesis:GetRecords"), "{words}: {ran:?}");
        assert!(!stage.folder.path().join("file").exists(), "{words} left an empty file");
    }
}

#[test]
fn a_doctor_names_the_right_that_a_reader_lacks() {
    let stage = stage();
    stage.fault(&json!({"operation": "GetRecords", "effect": "Deny"}));
    let words = "doctor orders app --leases sqlite:leases.db --watch 1s --json";
    let ran = stage.run(words, "");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.out.contains("may not call kinesis:GetRecords"), "{ran:?}");
}

/// Starts a server that answers every call with this error. Returns its address.
fn refusing(code: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            std::thread::spawn(move || answer(connection, code));
        }
    });
    format!("http://{address}")
}

fn answer(connection: std::net::TcpStream, code: &str) -> Option<()> {
    let mut reader = BufReader::new(connection);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line.is_empty() {
                break;
            }
        }
        reader.read_exact(&mut vec![0; length]).ok()?;
        let body = json!({"__type": format!("com.amazon.coral.service#{code}"),
                          "message": "not today"})
        .to_string();
        let head = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/x-amz-json-1.0\r\n";
        let reply = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        reader.get_mut().write_all(reply.as_bytes()).ok()?;
    }
}

#[test]
fn a_table_that_is_denied_is_told_with_the_right_that_is_missing() {
    for (code, expected) in [
        ("AccessDeniedException", &["denies access", "on table `app`", "grant it"][..]),
        ("ExpiredTokenException", &["denies access", "ExpiredTokenException"]),
        ("UnrecognizedClientException", &["denies access", "does not accept these credentials"]),
    ] {
        let endpoint = refusing(code);
        for words in ["leases app --leases dynamodb:app", "leases app --leases kcl:app"] {
            let mut command = program();
            command.args(words.split_whitespace()).args(["--endpoint", &endpoint]);
            check(words, &run(command, ""), expected);
        }
    }
}

#[test]
fn credentials_are_asked_for_by_what_a_stream_elsewhere_says_of_them() {
    for (code, expected) in
        [("UnrecognizedClientException", "is denied at"), ("ExpiredTokenException", "renew them")]
    {
        let endpoint = refusing(code);
        let mut command = program();
        command.args(["shards", "orders", "--endpoint", &endpoint]);
        let ran = run(command, "");
        check("shards", &ran, &[expected, code]);
    }
}
