//! Tests with real children, written in shell: well-behaved and faulty ones.

use super::*;
use crate::protocol::{Action, ShutdownMessages, ToChild};
use crate::session::{ChildCheckpoint, ChildFault};
use anabranch::clock::Clock;
use anabranch_model::position::Position;
use std::sync::Arc;

const SHARD: &str = "shardId-000000000000";

/// Answers every request correctly.
const GOOD: &str = r#"while read -r line; do
    action=$(printf '%s' "$line" | sed 's/.*{"action":"\([a-zA-Z]*\)".*/\1/')
    printf '\n{"action": "status", "responseFor": "%s"}\n' "$action"
done"#;

fn settings(script: &str, silence_ms: Option<u64>) -> Arc<ChildSettings> {
    Arc::new(ChildSettings {
        command: vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()],
        silence_ms,
        exit_ms: 5_000,
        inherit_stderr: false,
    })
}

fn start(script: &str) -> Child {
    Child::start(&settings(script, None), SHARD, &Clock::machine()).expect("sh can be started")
}

fn initialize() -> ToChild {
    ToChild::initialize(SHARD, Position::TrimHorizon)
}

/// Records the requested checkpoints, and rejects the one with this number, starting at 1.
#[derive(Default)]
struct Notes {
    wanted: Vec<ChildCheckpoint>,
    refused: usize,
}

impl CheckpointWriter for Notes {
    async fn write_checkpoint(&mut self, wanted: &ChildCheckpoint) -> Result<(), String> {
        self.wanted.push(wanted.clone());
        if self.wanted.len() == self.refused {
            return Err("ThrottlingException".to_owned());
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_child_answers_one_question_after_another_and_ends_when_its_input_is_closed() {
    let mut child = start(GOOD);
    let messages = ShutdownMessages::Kcl2;
    for request in [
        initialize(),
        ToChild::process_records(&[], Some(0)),
        ToChild::shutdown_requested(),
        ToChild::lease_lost(messages),
    ] {
        child.ask(request, &mut NoCheckpoints).await.expect("it answers");
    }
    child.close().await;
}

#[tokio::test]
async fn a_checkpoint_is_written_down_and_its_error_comes_back_to_the_child() {
    // The child exits with code 3 if the expected replies arrive.
    let script = r#"
        read -r line
        echo '{"action":"checkpoint","sequenceNumber":"12","subSequenceNumber":3}'
        read -r first
        echo '{"action":"checkpoint"}'
        read -r second
        case "$first" in *'"error":null}') ;; *) exit 1;; esac
        case "$second" in *'"sequenceNumber":null,"subSequenceNumber":null,"error":"ThrottlingException"}') ;; *) exit 2;; esac
        exit 3"#;
    let mut child = start(script);
    let mut notes = Notes { refused: 2, ..Notes::default() };
    let fault = child.ask(ToChild::process_records(&[], None), &mut notes).await.unwrap_err();
    let expected = ChildFault::Ended {
        asked: Action::ProcessRecords,
        status: Some("exit status: 3".to_owned()),
    };
    assert_eq!(fault, expected);
    let first =
        ChildCheckpoint { sequence_number: Some("12".to_owned()), sub_sequence_number: Some(3) };
    let all = ChildCheckpoint { sequence_number: None, sub_sequence_number: None };
    assert_eq!(notes.wanted, [first, all]);
}

/// Checks that a child that runs `script` fails with this message when asked to initialize.
async fn check_fault(script: &str, silence_ms: Option<u64>, expected: &str) {
    let settings = settings(script, silence_ms);
    let mut child = Child::start(&settings, SHARD, &Clock::machine()).expect("sh can be started");
    let fault = child.ask(initialize(), &mut NoCheckpoints).await.expect_err(script);
    assert_eq!(fault.to_string(), expected, "{script}");
    child.kill().await;
}

#[tokio::test]
async fn a_child_that_breaks_the_protocol_is_at_fault() {
    check_fault("exit 7", None, "the child exited during initialize (exit status: 7)").await;
    check_fault("kill -9 $$", None, "the child exited during initialize (signal: 9 (SIGKILL))")
        .await;
    check_fault(
        r#"read -r line; echo '{"action":"status","responseFor":"processRecords"}'"#,
        None,
        "the child answered \"processRecords\" instead of initialize",
    )
    .await;
    check_fault(
        r#"read -r line; echo '{"action":"status"}'"#,
        None,
        "the child answered nothing instead of initialize",
    )
    .await;
    // Half a message at the end does not count.
    check_fault(
        r#"read -r line; printf '{"action":"status","responseFor":"init'; exit 0"#,
        None,
        "the child exited during initialize (exit status: 0)",
    )
    .await;
    check_fault(
        "sleep 60",
        Some(300),
        "the child did not answer initialize within 1 s (timeoutInSeconds)",
    )
    .await;
    // A child that only prints counts as silent.
    check_fault(
        "while :; do echo noise; sleep 0.05; done",
        Some(1_000),
        "the child did not answer initialize within 1 s (timeoutInSeconds)",
    )
    .await;
}

#[tokio::test]
async fn prints_between_messages_change_nothing() {
    let script = r#"read -r line
        echo 'starting up'
        echo '{"level":"info","action":"log"}'
        printf 'no end of line yet'
        printf '\n{"action":"status","responseFor":"initialize"}\n'
        echo 'half' >&2
        read -r line
        head -c 5242880 /dev/zero | tr '\0' 'x'
        printf '\n{"action":"status","responseFor":"processRecords"}\n'
        read -r line"#;
    let mut child = start(script);
    child.ask(initialize(), &mut NoCheckpoints).await.expect("it answers between prints");
    child
        .ask(ToChild::process_records(&[], None), &mut NoCheckpoints)
        .await
        .expect("it answers after a line of five megabytes");
    child.close().await;
}

#[tokio::test]
async fn a_large_batch_passes_to_a_child_that_prints_before_it_reads() {
    // Both pipes are full while the daemon writes, so it must read and write concurrently.
    let script = r#"head -c 3000000 /dev/zero | tr '\0' '\n'
        read -r line
        echo '{"action":"status","responseFor":"processRecords"}'"#;
    let record = anabranch_model::record::UserRecord {
        sequence: "1".parse().expect("digits"),
        sub: 0,
        aggregated: false,
        partition_key: "k".into(),
        explicit_hash_key: None,
        data: bytes::Bytes::from(vec![7; 1 << 20]),
        arrival_ms: 1,
    };
    let records = vec![record; 4];
    let mut child = start(script);
    child
        .ask(ToChild::process_records(&records, None), &mut NoCheckpoints)
        .await
        .expect("it answers");
    child.close().await;
}

#[tokio::test]
async fn what_was_said_unasked_does_not_answer_the_next_question() {
    // It reports a batch as done twice, like a Node worker that calls back twice.
    let script = r#"read -r line
        echo '{"action":"status","responseFor":"processRecords"}'
        echo '{"action":"status","responseFor":"processRecords"}'
        read -r line
        exit 5"#;
    let mut child = start(script);
    let batch = || ToChild::process_records(&[], None);
    child.ask(batch(), &mut NoCheckpoints).await.expect("it answers");
    // The second one has arrived once the pipe's reader has seen it.
    while child.messages.is_empty() {
        tokio::task::yield_now().await;
    }
    let fault =
        child.ask(batch(), &mut NoCheckpoints).await.expect_err("the second batch was not done");
    assert!(matches!(fault, ChildFault::Ended { .. }), "{fault}");
}

#[tokio::test]
async fn a_question_that_was_dropped_stays_open_until_it_is_answered() {
    let script = r#"read -r line
        sleep 0.3
        echo '{"action":"checkpoint"}'
        read -r refused
        case "$refused" in *ShutdownException*) ;; *) exit 1;; esac
        echo '{"action":"status","responseFor":"processRecords"}'
        read -r line
        echo '{"action":"status","responseFor":"leaseLost"}'"#;
    let mut child = start(script);
    let (mut notes, clock) = (Notes::default(), Clock::machine());
    tokio::select! {
        biased;
        _ = child.ask(ToChild::process_records(&[], None), &mut notes) => panic!("it sleeps"),
        () = clock.sleep(50) => {}
    }
    child.finish().await.expect("it ends its batch");
    child
        .ask(ToChild::lease_lost(ShutdownMessages::Kcl2), &mut NoCheckpoints)
        .await
        .expect("it is told");
    assert_eq!(notes.wanted, [], "nothing is written after the lease is lost");
    child.close().await;
}

/// A store that never answers. Notifies when it was called.
struct Hangs(Arc<tokio::sync::Notify>);

impl CheckpointWriter for Hangs {
    async fn write_checkpoint(&mut self, _: &ChildCheckpoint) -> Result<(), String> {
        self.0.notify_one();
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_checkpoint_that_was_being_written_when_the_lease_went_is_answered_before_the_loss() {
    for (action, request) in [
        ("processRecords", ToChild::process_records(&[], None)),
        ("shardEnded", ToChild::shard_ended(ShutdownMessages::Kcl2)),
    ] {
        let script = format!(
            r#"read -r line
            echo '{{"action":"checkpoint","sequenceNumber":"12"}}'
            read -r reply
            case "$reply" in *'"sequenceNumber":"12",'*'"error":"ShutdownException"}}') ;; *) exit 1;; esac
            echo '{{"action":"status","responseFor":"{action}"}}'
            read -r line
            case "$line" in *leaseLost*) ;; *) exit 2;; esac
            echo '{{"action":"status","responseFor":"leaseLost"}}'"#
        );
        let mut child = start(&script);
        let asked = Arc::new(tokio::sync::Notify::new());
        let mut hangs = Hangs(Arc::clone(&asked));
        tokio::select! {
            biased;
            _ = child.ask(request, &mut hangs) => panic!("nothing is written"),
            () = asked.notified() => {}
        }
        child.notify_lease_lost(ShutdownMessages::Kcl2).await.expect("it is told");
        child.close().await;
    }
}

#[tokio::test]
async fn a_child_whose_lease_is_lost_has_a_time_to_end_what_it_is_at() {
    for (batch, expected) in [
        ("sleep 0.3", None),
        ("exit 4", Some("the child exited during processRecords (exit status: 4)")),
        (
            "sleep 60",
            Some(
                "the child did not finish processRecords within 2000 ms after its lease was lost \
                 (childExitMillis)",
            ),
        ),
    ] {
        let script = format!(
            r#"read -r line
            {batch}
            echo '{{"action":"status","responseFor":"processRecords"}}'
            read -r line
            echo '{{"action":"status","responseFor":"leaseLost"}}'"#
        );
        let settings =
            Arc::new(ChildSettings { exit_ms: 2_000, ..(*settings(&script, None)).clone() });
        let clock = Clock::machine();
        let mut child = Child::start(&settings, SHARD, &clock).expect("sh can be started");
        let mut nowhere = NoCheckpoints;
        tokio::select! {
            biased;
            _ = child.ask(ToChild::process_records(&[], None), &mut nowhere) => {}
            () = clock.sleep(50) => {}
        }
        let parted = child.notify_lease_lost(ShutdownMessages::Kcl2).await;
        let fault = parted.err().map(|fault| fault.to_string());
        assert_eq!(fault.as_deref(), expected, "{batch}");
        child.kill().await;
    }
}

#[tokio::test]
async fn a_child_that_reads_no_more_and_lives_on_is_at_fault() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let deaf = folder.path().join("deaf");
    let mut child = start(&format!("exec <&-; echo > {}; exec sleep 600", deaf.display()));
    while !deaf.exists() {
        Clock::machine().sleep(10).await;
    }
    let fault = child.ask(initialize(), &mut NoCheckpoints).await.expect_err("it hears nothing");
    assert!(matches!(fault, ChildFault::Ended { .. }), "{fault}");
    child.kill().await;
}

#[tokio::test]
async fn a_child_that_does_not_end_is_killed_and_reaped() {
    let settings =
        Arc::new(ChildSettings { exit_ms: 50, ..(*settings("exec sleep 60", None)).clone() });
    let child = Child::start(&settings, SHARD, &Clock::machine()).expect("sh can be started");
    let pid = child.pid();
    child.close().await;
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is gone");
}

#[tokio::test]
async fn a_wrapper_ends_with_all_that_it_started() {
    // One wrapper waits for its worker. The other exits first, and its worker keeps the pipes open.
    for (then, silence_ms, expected) in [
        ("wait", 1_000, "the child did not answer initialize within 1 s (timeoutInSeconds)"),
        ("exit 7", 10_000, "the child exited during initialize (exit status: 7)"),
    ] {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let note = folder.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; {then}", note.display());
        let settings = settings(&script, Some(silence_ms));
        let mut child =
            Child::start(&settings, SHARD, &Clock::machine()).expect("sh can be started");
        let fault = child.ask(initialize(), &mut NoCheckpoints).await.expect_err(&script);
        assert_eq!(fault.to_string(), expected, "{script}");
        let worker = std::fs::read_to_string(&note).expect("it was noted");
        child.kill().await;
        until_dead(worker.trim()).await;
    }
}

#[tokio::test]
async fn a_child_that_is_dropped_takes_all_that_it_started_along() {
    // As when a daemon is stopped at once: the end of a child is not awaited.
    for closing in [false, true] {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let note = folder.path().join("pid");
        let child =
            start(&format!("sleep 600 & echo $! > {0}.new; mv {0}.new {0}; wait", note.display()));
        while !note.exists() {
            Clock::machine().sleep(10).await;
        }
        let worker = std::fs::read_to_string(&note).expect("it was noted");
        if closing {
            let clock = Clock::machine();
            tokio::select! {
                biased;
                () = child.close() => panic!("it does not end"),
                () = clock.sleep(50) => {}
            }
        } else {
            drop(child);
        }
        until_dead(worker.trim()).await;
    }
}

#[tokio::test]
async fn what_a_child_leaves_running_when_it_ends_in_order_is_let_be() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let note = folder.path().join("pid");
    let child =
        start(&format!("sleep 600 > /dev/null 2>&1 & echo $! > {}; read -r line", note.display()));
    child.close().await;
    let left = std::fs::read_to_string(&note).expect("it was noted");
    // A killed process takes a moment to die.
    Clock::machine().sleep(300).await;
    let status = std::fs::read_to_string(format!("/proc/{}/stat", left.trim()));
    assert!(status.is_ok_and(|status| !status.contains(") Z ")), "process {left} is gone");
    let kill = std::process::Command::new("kill").args(["-9", left.trim()]).status();
    assert!(kill.is_ok_and(|status| status.success()));
}

/// Waits until a process is gone or a zombie.
async fn until_dead(pid: &str) {
    let clock = Clock::machine();
    for _ in 0..200 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        if status.map_or(true, |status| status.contains(") Z ")) {
            return;
        }
        clock.sleep(50).await;
    }
    panic!("process {pid} is still there");
}

#[test]
fn a_program_that_is_not_there_is_named_with_the_way_out() {
    let settings = Arc::new(ChildSettings {
        command: ChildSettings::words("  no-such-program   --flag "),
        silence_ms: None,
        exit_ms: 1,
        inherit_stderr: false,
    });
    assert_eq!(settings.command, ["no-such-program", "--flag"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let started = runtime.block_on(async { Child::start(&settings, SHARD, &Clock::machine()) });
    let said = started.unwrap_err().to_string();
    assert!(said.contains("no-such-program --flag") && said.contains("executableName"), "{said}");
}
