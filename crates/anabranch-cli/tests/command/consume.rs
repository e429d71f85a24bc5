//! Tests of `anabranch consume`, with and without `--exec`.

use crate::stage::{CommandFixture, until};
use serde_json::Value;

fn lines(count: usize) -> String {
    let line = |n: usize| format!("{{\"key\":\"k{}\",\"data\":\"{n}\"}}", n % 5);
    (0..count).map(line).collect::<Vec<_>>().join("\n")
}

/// Checks that the numbers of each key ascend.
#[track_caller]
fn in_order(numbers: &[usize]) {
    for key in 0..5 {
        let of_key: Vec<_> = numbers.iter().filter(|n| *n % 5 == key).collect();
        assert!(of_key.is_sorted(), "key {key}: {of_key:?}");
    }
}

#[test]
fn without_a_program_records_are_printed_and_what_was_printed_is_done() {
    let stage = CommandFixture::start(&["orders:1"]);
    let consume = "consume orders --app printer --leases sqlite:leases.db --json";
    stage.run("put orders", &lines(20)).ok();
    let mut first = stage.spawn(consume);
    let printed = first.lines(20);
    stage.split("orders");
    stage.run("put orders", &lines(40)).ok();
    let more = first.lines(40);
    let ran = first.stop().ok();
    assert_eq!(ran.out, "", "nothing comes twice");
    let record: Value = serde_json::from_str(&printed[0]).unwrap();
    assert_eq!(record["shard"], "shardId-000000000000");
    assert_eq!(record["data"], "0");
    for field in ["sequence", "key", "arrived"] {
        assert!(record[field].is_string(), "{field} in {record}");
    }
    assert_eq!(record["sub"], 0);
    let number = |line: &String| -> usize {
        let record: Value = serde_json::from_str(line).unwrap();
        record["data"].as_str().unwrap().parse().unwrap()
    };
    in_order(&more.iter().map(number).collect::<Vec<_>>());
    // Another process resumes after the records of the first one.
    stage.run("put orders", "{\"key\":\"z\",\"data\":\"next\"}\n").ok();
    let mut second = stage.spawn(consume);
    assert!(second.lines(1)[0].contains("\"next\""));
    second.stop().ok();
}

#[test]
fn a_program_is_given_each_record_and_what_it_fails_comes_again() {
    let stage = CommandFixture::start(&["orders:2"]);
    stage.run("put orders", &lines(50)).ok();
    // Fails each number that ends in 7 once, and crashes once in the middle of its work.
    let script = r#"
import json, os, sys
for line in sys.stdin:
    record = json.loads(line)
    mark = "seen-" + record["data"]
    first = not os.path.exists(mark)
    open(mark, "w").close()
    if first and record["data"].endswith("7"):
        print("fail: not today", flush=True)
        continue
    if first and record["data"] == "23":
        sys.exit(3)
    with open("log", "a") as log:
        log.write(record["data"] + "\n")
    print("some words", flush=True)
    print("ok", flush=True)
"#;
    std::fs::write(stage.folder.path().join("worker.py"), script).unwrap();
    let mut command = stage.command("consume orders --app mailer --leases sqlite:leases.db");
    command.args(["--exec", "python3 worker.py", "--concurrency", "3"]);
    let running = crate::stage::RunningCommand::start(command);
    let log = || -> Vec<usize> {
        let text = std::fs::read_to_string(stage.folder.path().join("log")).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    until("all records", || log().len() >= 50);
    let ran = running.stop().ok();
    let mut numbers = log();
    in_order(&numbers);
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers, (0..50).collect::<Vec<_>>());
    assert!(ran.err.contains("not today"), "{ran:?}");
    assert!(ran.err.contains("exited (exit status: 3)"), "{ran:?}");
    assert!(ran.err.contains("some words"), "{ran:?}");
}

#[test]
fn a_program_may_print_any_bytes_and_lines_of_any_length() {
    let stage = CommandFixture::start(&["orders:1"]);
    stage.run("put orders", &lines(5)).ok();
    let script = r#"
import sys
open("starts", "a").write("x")
for line in sys.stdin:
    sys.stdout.buffer.write(b"caf\xe9\n" + b"x" * (3 << 20) + b"\nok\n")
    sys.stdout.buffer.flush()
    open("log", "a").write("x")
"#;
    std::fs::write(stage.folder.path().join("worker.py"), script).unwrap();
    let mut command = stage.command("consume orders --app a --leases sqlite:leases.db");
    command.args(["--exec", "python3 worker.py"]);
    // A pipe without a reader would block the program.
    let mut child = command
        .stdout(std::process::Stdio::null())
        .stderr(std::fs::File::create(stage.folder.path().join("said")).unwrap())
        .spawn()
        .unwrap();
    let file = |name: &str| std::fs::read(stage.folder.path().join(name)).unwrap_or_default();
    let said = || String::from_utf8_lossy(&file("said")).into_owned();
    until("all records", || file("log").len() >= 5 && said().contains("more bytes of this line"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((file("starts").len(), file("log").len()), (1, 5), "it was never started again");
    assert!(said().contains("caf\u{fffd}"));
}

#[test]
fn a_program_that_hangs_is_killed_with_all_that_it_started() {
    let stage = CommandFixture::start(&["orders:1"]);
    stage.run("put orders", &lines(3)).ok();
    // The first start hangs in a process of its own; later ones answer.
    let program = "if [ -e mark ]; then while read l; do echo ok; echo \"$l\" >> log; done; \
                   else touch mark; (sleep 1000 & echo $! > sleeper; wait); fi";
    let mut command = stage.command("consume orders --app a --leases sqlite:leases.db");
    command.args(["--exec", program, "--timeout", "1s"]);
    // A minimal image has a shell and the programs that the test needs, but no `kill`.
    command.env("PATH", small_image(&stage, &["sh", "touch", "sleep"]));
    let running = crate::stage::RunningCommand::start(command);
    let file =
        |name: &str| std::fs::read_to_string(stage.folder.path().join(name)).unwrap_or_default();
    until("all records", || file("log").lines().count() >= 3);
    let sleeper = file("sleeper");
    until("the end of the sleeper", || {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", sleeper.trim()));
        status.is_err() || status.is_ok_and(|status| status.contains(" Z "))
    });
    let ran = running.stop().ok();
    assert!(ran.err.contains("did not answer in time"), "{ran:?}");
}

/// Creates a folder that contains only these programs.
fn small_image(stage: &CommandFixture, programs: &[&str]) -> std::path::PathBuf {
    let folder = stage.folder.path().join("bin");
    std::fs::create_dir(&folder).unwrap();
    for program in programs {
        let path = std::env::var_os("PATH").unwrap();
        let found = std::env::split_paths(&path).map(|at| at.join(program)).find(|at| at.exists());
        std::os::unix::fs::symlink(found.unwrap(), folder.join(program)).unwrap();
    }
    folder
}

#[test]
fn nothing_that_a_program_started_outlives_a_stop_that_is_forced() {
    let stage = CommandFixture::start(&["orders:1"]);
    stage.run("put orders", &lines(3)).ok();
    let mut command =
        stage.command("consume orders --app a --leases sqlite:leases.db --grace-period 60s");
    // It ignores signals and the end of its input.
    command.args(["--exec", "trap '' TERM INT; sleep 1000 & echo $! > sleeper; wait"]);
    let running = crate::stage::RunningCommand::start(command);
    let sleeper =
        || std::fs::read_to_string(stage.folder.path().join("sleeper")).unwrap_or_default();
    until("the program", || sleeper().ends_with('\n'));
    running.signal("TERM");
    std::thread::sleep(std::time::Duration::from_millis(500));
    running.signal("INT");
    let ran = running.wait();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("second signal"), "{ran:?}");
    until("the end of the sleeper", || {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", sleeper().trim()));
        status.map_or(true, |status| status.contains(" Z "))
    });
}

#[test]
fn a_reader_that_closes_the_pipe_ends_it_without_a_word() {
    let stage = CommandFixture::start(&["orders:1"]);
    stage.run("put orders", &lines(200)).ok();
    let mut running = stage.spawn("consume orders --app a --leases sqlite:leases.db");
    running.lines(3);
    let crate::stage::RunningCommand { mut child, out } = running;
    drop(out);
    stage.run("put orders", &lines(200)).ok();
    until("the end", || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}
