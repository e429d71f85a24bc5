//! Tests of stops in corner cases: no valid record becomes a dead letter, no stop exceeds its grace
//! period, and the exit code reports what is left.

use crate::stage::{CommandFixture, CommandResult, RunningCommand, program, until};
use std::process::Command;

const CONSUME: &str = "consume orders --app a --leases sqlite:leases.db";
const PARKS: &str =
    "consume orders --app a --leases sqlite:leases.db --dead-letter parked --attempts 1";

fn lines(count: usize) -> String {
    let line = |n: usize| format!("{{\"key\":\"k{}\",\"data\":\"{n}\"}}", n % 5);
    (0..count).map(line).collect::<Vec<_>>().join("\n")
}

fn file(stage: &CommandFixture, name: &str) -> String {
    std::fs::read_to_string(stage.folder.path().join(name)).unwrap_or_default()
}

/// Returns the output of a consumer that stops when everything is done.
fn rest(stage: &CommandFixture, count: usize) -> Vec<String> {
    let mut running = stage.spawn(&format!("{CONSUME} --json"));
    let lines = running.lines(count);
    assert_eq!(running.stop().ok().out, "");
    lines
}

/// Starts a consumer with this program, whose output is ignored.
fn with_program(stage: &CommandFixture, words: &str, exec: &str) -> RunningCommand {
    let mut command = stage.command(words);
    command.args(["--exec", exec]);
    RunningCommand::start(command)
}

#[test]
fn nothing_is_put_aside_because_the_reader_closed_the_pipe() {
    let stage = CommandFixture::start(&["orders:4"]);
    stage.run("put orders", &lines(4_000)).ok();
    for _ in 0..3 {
        let mut running = stage.spawn(&format!("{PARKS} --concurrency 16"));
        running.lines(20);
        let RunningCommand { mut child, out } = running;
        drop(out);
        until("the end", || child.try_wait().unwrap().is_some());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert_eq!(file(&stage, "parked"), "", "{said}");
    }
}

#[test]
fn nothing_is_put_aside_because_the_program_was_told_to_end_or_begins_anew() {
    let stage = CommandFixture::start(&["orders:1"]);
    stage.run("put orders", &lines(12)).ok();
    // The program is terminated twice, can't be executed once, and then exits by itself after every
    // three records.
    let program = "echo x >> starts; case $(wc -l < starts) in \
                   1) read l; kill -TERM $$; sleep 9;; 2) read l; kill -HUP $$; sleep 9;; \
                   3) read l; exec ./missing;; \
                   *) for n in 1 2 3; do read l || exit 0; echo \"$l\" >> log; echo ok; done;; esac";
    let running = with_program(&stage, PARKS, program);
    until("all records", || file(&stage, "log").lines().count() >= 12);
    let ran = running.stop().ok();
    assert_eq!(file(&stage, "parked"), "", "{ran:?}");
    assert_eq!(file(&stage, "log").lines().count(), 12, "{ran:?}");
}

#[test]
fn nothing_is_put_aside_because_a_service_manager_stops_the_program_too() {
    let stage = CommandFixture::start(&["orders:1"]);
    stage.run("put orders", &lines(3)).ok();
    let program = "trap 'exit 1' TERM; echo $$ > pid; read l; sleep 1000 > /dev/null & wait";
    let running = with_program(&stage, PARKS, program);
    until("the program", || file(&stage, "pid").ends_with('\n'));
    // The program receives the signal slightly earlier.
    let killed = Command::new("kill").args(["-TERM", file(&stage, "pid").trim()]).status();
    assert!(killed.unwrap().success());
    std::thread::sleep(std::time::Duration::from_millis(50));
    running.signal("TERM");
    let ran = running.wait().ok();
    assert_eq!(file(&stage, "parked"), "", "{ran:?}");
    assert_eq!(rest(&stage, 3).len(), 3);
}

#[test]
fn a_program_that_falls_over_a_record_has_it_put_aside() {
    let stage = CommandFixture::start(&["orders:1"]);
    stage.run("put orders", &lines(6)).ok();
    let program = "while read l; do case $l in *'\"data\":\"3\"'*) exit 1;; esac; echo ok; done";
    let running = with_program(&stage, PARKS, program);
    until("it is put aside", || file(&stage, "parked").lines().count() == 1);
    running.stop().ok();
    assert!(file(&stage, "parked").contains("exit status: 1"));
}

#[test]
fn a_record_that_is_broken_off_at_the_end_of_the_grace_is_named_and_comes_again() {
    let stage = CommandFixture::start(&["orders:1"]);
    stage.run("put orders", &lines(1)).ok();
    // It neither answers nor reacts to signals, and starts a process that does not either.
    let program = "trap '' TERM INT HUP; echo > begun; (trap '' TERM; sleep 1000) & sleep 1000";
    let running = with_program(&stage, &format!("{CONSUME} --grace-period 1s"), program);
    until("the program", || !file(&stage, "begun").is_empty());
    let ran = running.stop();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for part in ["grace", "shardId-000000000000", "key \"k0\"", "delivered again"] {
        assert!(ran.err.contains(part), "{part} is not in {ran:?}");
    }
    assert_eq!(rest(&stage, 1).len(), 1);
}

#[test]
fn a_reader_that_takes_nothing_does_not_hold_up_a_stop() {
    let stage = CommandFixture::start(&["orders:1"]);
    let data = "x".repeat(1_000);
    let lines = vec![format!("{{\"key\":\"k\",\"data\":\"{data}\"}}"); 300].join("\n");
    stage.run("put orders", &lines).ok();
    let ends = |words: &str, code: i32| {
        let mut running = stage.spawn(words);
        // The pipe is full by then.
        running.lines(1);
        std::thread::sleep(std::time::Duration::from_secs(1));
        running.signal("TERM");
        until("the end", || running.child.try_wait().unwrap().is_some());
        let ran = running.wait();
        assert_eq!(ran.code, Some(code), "{words}: {}", ran.err);
    };
    ends(&format!("{CONSUME} --grace-period 1s"), 1);
    ends("tail orders --since trim", 0);
}

/// Closes the terminal of a command, with repeated SIGHUPs as terminals send them.
fn hang_up(running: &RunningCommand) {
    running.signal("HUP");
    running.signal("HUP");
}

#[test]
fn a_terminal_that_is_closed_stops_everything_in_order() {
    let stage = CommandFixture::start(&["orders:1", "other:1"]);
    stage.run("put orders", &lines(3)).ok();
    let check = |words: &str, count: usize| -> CommandResult {
        let mut running = stage.spawn(words);
        running.lines(count);
        hang_up(&running);
        let ran = running.wait();
        assert_eq!(ran.code, Some(0), "{words}: {ran:?}");
        ran
    };
    check(CONSUME, 3);
    check("tail orders --since trim", 3);
    check("local --port 0", 1);
    let running = stage.spawn("cp stream:orders stream:other --follow");
    until("the copy", || stage.stored("other").len() == 3);
    hang_up(&running);
    running.wait().ok();
    // Records in progress are awaited, whatever a terminal sends.
    stage.run("put orders", &lines(1)).ok();
    let program = "read l; echo > begun; sleep 1; echo ok; cat";
    let running = with_program(&stage, CONSUME, program);
    until("the program", || !file(&stage, "begun").is_empty());
    hang_up(&running);
    running.wait().ok();
}

#[test]
fn a_word_that_is_said_twice_at_once_is_one() {
    let stage = CommandFixture::start(&["orders:1"]);
    stage.run("put orders", &lines(1)).ok();
    let program = "read l; echo > begun; sleep 1; echo ok; cat";
    let running = with_program(&stage, CONSUME, program);
    until("the program", || !file(&stage, "begun").is_empty());
    // As `timeout` does it.
    running.signal("TERM");
    running.signal("TERM");
    running.wait().ok();
}

#[test]
fn a_command_that_outlives_its_terminal_by_wish_hears_nothing_of_it() {
    let stage = CommandFixture::start(&["orders:1"]);
    stage.run("put orders", &lines(3)).ok();
    let words =
        format!("{} {CONSUME} --endpoint {}", env!("CARGO_BIN_EXE_anabranch"), stage.endpoint);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("trap '' HUP; exec {words}")]).current_dir(stage.folder.path());
    command.envs(program().get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut running = RunningCommand::start(command);
    running.lines(3);
    hang_up(&running);
    stage.run("put orders", &lines(2)).ok();
    assert_eq!(running.lines(2).iter().filter(|line| !line.is_empty()).count(), 2);
    running.stop().ok();
}

#[test]
fn whoever_follows_a_stream_is_done_when_it_is_told_to_stop() {
    let stage = CommandFixture::start(&["orders:1", "other:1"]);
    stage.run("put orders", &lines(30)).ok();
    let running = stage.spawn("cp stream:orders stream:other --follow");
    until("the copy", || stage.stored("other").len() == 30);
    running.signal("INT");
    let ran = running.wait().ok();
    assert!(ran.err.contains("other: 30 placed") && !ran.err.contains("error"), "{ran:?}");
    let running = stage.spawn("cp stream:orders copied --follow");
    until("the file", || stage.folder.path().join("copied").exists());
    std::thread::sleep(std::time::Duration::from_secs(2));
    let ran = running.stop().ok();
    assert!(ran.err.contains("copied 30 records of orders to copied"), "{ran:?}");
    assert_eq!(file(&stage, "copied").lines().count(), 30);
    // A copy without --follow had not reached the end. With it, some records have no place.
    stage.fault(&serde_json::json!({"effect": "Throttle", "operation": "PutRecords"}));
    for words in ["cp stream:orders stream:other", "cp stream:orders stream:other --follow"] {
        let running = stage.spawn(words);
        std::thread::sleep(std::time::Duration::from_secs(1));
        running.signal("INT");
        std::thread::sleep(std::time::Duration::from_millis(300));
        running.signal("INT");
        let ran = running.wait();
        assert_eq!(ran.code, Some(1), "{words}: {ran:?}");
    }
}

/// The append blocks in a thread that no signal ends, as on a hanging disk.
#[test]
fn a_file_for_dead_letters_that_hangs_does_not_hold_up_the_end() {
    let stage = CommandFixture::start(&["orders:1"]);
    stage.run("put orders", &lines(1)).ok();
    let parked = std::fs::File::create(stage.folder.path().join("parked")).unwrap();
    parked.lock().unwrap();
    let running =
        with_program(&stage, &format!("{PARKS} --grace-period 1s"), "echo > begun; exit 1");
    until("the program", || !file(&stage, "begun").is_empty());
    // The append starts soon after.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let asked = std::time::Instant::now();
    let ran = running.stop();
    assert!(asked.elapsed() < std::time::Duration::from_secs(6), "{:?}", asked.elapsed());
    // Its handler had ended, so nothing was interrupted, but the record is not done either.
    let ran = ran.ok();
    assert_eq!(file(&stage, "parked"), "", "{ran:?}");
    drop(parked);
    assert_eq!(rest(&stage, 1).len(), 1);
}
