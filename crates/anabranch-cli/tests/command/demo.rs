//! Tests of `anabranch demo`.

use crate::stage::{RunningCommand, program, until};
use std::process::Command;

/// Counts the running worker processes of a demo.
fn workers_of(folder: &str) -> usize {
    let found = Command::new("pgrep").args(["-fc", &format!("demo-worker.*{folder}")]).output();
    String::from_utf8(found.unwrap().stdout).unwrap().trim().parse().unwrap_or(0)
}

#[test]
fn order_is_kept_through_reshards_a_stop_and_a_kill_and_the_verdict_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = program();
    command.args(["demo", "--seconds", "10", "--rate", "500", "--seed", "7"]);
    command.env("TMPDIR", folder.path());
    let ran = RunningCommand::start(command).wait().ok();
    for part in [
        "SIGTERM to worker-",
        "SIGKILL to worker-",
        "split shard-",
        "merge shard-",
        "records put                      5000",
        "lost                                0",
        "out of order                        0",
        "verdict: every key in order, nothing lost",
    ] {
        assert!(ran.out.contains(part), "{part:?} is not in\n{}\n{}", ran.out, ran.err);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it leaves nothing behind");
}

#[test]
fn a_demo_that_is_interrupted_leaves_no_process_and_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().file_name().unwrap().to_str().unwrap().to_owned();
    for signal in ["INT", "KILL"] {
        let mut command = program();
        command.args(["demo", "--seconds", "30"]).env("TMPDIR", folder.path());
        let mut running = RunningCommand::start(command);
        running.lines(4);
        until("three workers", || workers_of(&name) == 3);
        running.signal(signal);
        let ran = running.wait();
        until("the end of the workers", || workers_of(&name) == 0);
        if signal == "INT" {
            assert_eq!(ran.code, Some(1), "{ran:?}");
            assert!(ran.err.contains("no verdict"), "{ran:?}");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }
}
