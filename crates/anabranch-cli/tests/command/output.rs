//! Output to a reader that closes early, or to a full disk.

use crate::stage::{CommandFixture, CommandResult, run, until};
use std::process::{Command, Stdio};

/// Returns commands that print texts or records and then exit. They print more than one line.
fn commands(stage: &CommandFixture) -> Vec<String> {
    stage.run("put orders --lines --key k", &"a line\n".repeat(3_000)).ok();
    let mut running = stage.spawn("consume orders --app app --leases sqlite:leases.db");
    running.lines(3_000);
    running.stop().ok();
    std::fs::write(
        stage.folder.path().join("app.properties"),
        "executableName = true\napplicationName = app\nstreamName = orders\n\
         AwsCredentialsProvider = DefaultCredentialsProvider\n",
    )
    .unwrap();
    [
        "--help",
        "consume --help",
        "completions bash",
        "man",
        "shards orders --app app --leases sqlite:leases.db",
        "shards orders --json",
        "leases app --leases sqlite:leases.db",
        "leases app --leases sqlite:leases.db show 0",
        "leases app --leases sqlite:leases.db reset --to trim",
        "put orders --json",
        "tail orders --since trim --until-caught-up",
        "cp stream:orders -",
        "multilang app.properties --check-config",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Runs a command with its standard output redirected by a shell.
fn redirected(stage: &CommandFixture, words: &str, to: &str) -> CommandResult {
    let script = format!("{} {words} {to}", env!("CARGO_BIN_EXE_anabranch"));
    let mut command = Command::new("bash");
    command.args(["-c", &script]).current_dir(stage.folder.path()).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", "nowhere");
    command.env("AWS_EC2_METADATA_DISABLED", "true").env("ANABRANCH_ENDPOINT", &stage.endpoint);
    run(command, "")
}

#[test]
fn a_reader_that_has_seen_enough_ends_a_command_without_a_word() {
    let stage = CommandFixture::start(&["orders:1"]);
    for words in commands(&stage) {
        let ran = redirected(&stage, &words, "| head -n 1; exit ${PIPESTATUS[0]}");
        assert_eq!(ran.code, Some(0), "{words}: {ran:?}");
        let said = ["error", "panicked", "pipe"].iter().any(|word| ran.err.contains(word));
        assert!(!said, "{words}: {ran:?}");
    }
}

#[test]
fn a_full_disk_behind_standard_output_is_told_and_judged() {
    let stage = CommandFixture::start(&["orders:1"]);
    for words in commands(&stage) {
        let ran = redirected(&stage, &words, "> /dev/full");
        assert_eq!(ran.code, Some(1), "{words}: {ran:?}");
        let said = ran.err.lines().last().unwrap();
        assert!(said.starts_with("error: standard output can't be written"), "{words}: {ran:?}");
        assert!(said.contains("No space left"), "{words}: {ran:?}");
    }
}

#[test]
fn what_a_full_disk_did_not_take_is_not_done() {
    let stage = CommandFixture::start(&["orders:1"]);
    stage.run("put orders --lines --key k", "1\n2\n3\n").ok();
    let words = "consume orders --app app --leases sqlite:leases.db";
    let ran = redirected(&stage, words, "> /dev/full");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("standard output can't be written"), "{ran:?}");
    let mut running = stage.spawn(&format!("{words} --lease-time 2s"));
    assert_eq!(running.lines(3).len(), 3);
    running.stop().ok();
}

#[test]
fn a_demo_that_nobody_watches_any_more_ends() {
    let mut command = crate::stage::program();
    command.args(["demo", "--seconds", "600"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut demo = command.spawn().unwrap();
    drop(demo.stdout.take());
    until("the end of the demo", || demo.try_wait().unwrap().is_some());
    let ran = demo.wait_with_output().unwrap();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
}
