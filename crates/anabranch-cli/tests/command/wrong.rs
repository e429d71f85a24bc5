//! Tests of user mistakes: each yields one line with a remedy, and nothing is written.

use crate::stage::{CommandFixture, CommandResult, program, run};
use std::net::TcpListener;

#[track_caller]
fn check(ran: &CommandResult, expected: &[&str]) {
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert_eq!(ran.err.trim().lines().count(), 1, "{ran:?}");
    assert_eq!(ran.out, "", "{ran:?}");
    for part in expected {
        assert!(ran.err.contains(part), "{part:?} is not in {ran:?}");
    }
}

#[test]
fn a_wrong_stream_is_answered_with_the_name_that_was_meant() {
    let stage = CommandFixture::start(&["orders:1", "clicks:1"]);
    check(&stage.run("put ordres", ""), &["there is no stream ordres", "did you mean orders?"]);
    check(
        &stage.run("consume xyz --app a --leases memory", ""),
        &["there is no stream xyz", "existing streams: clicks, orders"],
    );
}

#[test]
fn without_region_or_credentials_it_says_what_to_do_next() {
    let ask = |variables: &[(&str, &str)]| {
        let mut command = program();
        command.args(["put", "orders"]).envs(variables.iter().copied());
        run(command, "")
    };
    check(&ask(&[]), &["no AWS region", "--region", "anabranch local"]);
    check(
        &ask(&[("AWS_REGION", "eu-west-1")]),
        &["no AWS credentials", "--profile", "anabranch local"],
    );
}

#[test]
fn an_endpoint_where_nobody_listens_is_named() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = format!("http://127.0.0.1:{port}");
    // It needs neither credentials nor a region, with or without credentials in the environment.
    for variables in [&[][..], &[("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")]]
    {
        let mut command = program();
        command.args(["put", "orders", "--endpoint", &endpoint]).envs(variables.iter().copied());
        check(&run(command, ""), &["nothing answers at", &endpoint, "anabranch local"]);
    }
    let mut command = program();
    command.args(["put", "orders", "--endpoint", "localhost:4567"]);
    check(&run(command, ""), &["localhost:4567", "http://"]);
}

#[test]
fn options_that_make_no_sense_are_refused_before_anything_happens() {
    let stage = CommandFixture::start(&["orders:1"]);
    for (words, expected) in [
        ("consume orders --app a", &["--leases", "sqlite:"][..]),
        ("consume orders --leases memory", &["--app"]),
        ("consume orders --app a --leases redis:x", &["sqlite:PATH"]),
        ("consume orders --app a --leases memory --since yesterday", &["10m", "trim"]),
        ("consume orders --app a --leases sqlite:no/such/folder.db", &["no folder"]),
        (
            "consume orders --app a --leases memory --dead-letter /proc/parked",
            &["/proc/parked can't be"],
        ),
        ("put orders --lines", &["--key"]),
        ("put orders nosuchfile", &["nosuchfile"]),
    ] {
        check(&stage.run(words, ""), expected);
    }
}

#[test]
fn a_mistake_in_the_file_of_settings_is_named_with_its_line() {
    let stage = CommandFixture::start(&["orders:1"]);
    let file = stage.folder.path().join("anabranch.toml");
    std::fs::write(&file, "leases = \"memory\"\nendpiont = \"x\"\n").unwrap();
    check(&stage.run("put orders", ""), &["anabranch.toml", "line 2", "endpiont"]);
    std::fs::write(&file, format!("endpoint = {:?}\n", stage.endpoint)).unwrap();
    let mut command = program();
    command.args(["put", "orders"]).current_dir(stage.folder.path());
    run(command, "{\"key\":\"a\",\"data\":\"x\"}\n").ok();
    assert_eq!(stage.stored("orders"), ["x"]);
}
