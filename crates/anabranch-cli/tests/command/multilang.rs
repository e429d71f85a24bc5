//! Tests of `anabranch multilang` with a worker in shell: the messages it receives, and the effects
//! of its failures.

use crate::stage::{CommandFixture, CommandResult, RunningCommand, until};
use std::path::Path;

/// Logs received messages to a file per shard, checkpoints after each batch, and answers. A file
/// `once.DATA` makes it misbehave once, at the record with that data.
const WORKER: &str = r#"#!/bin/sh
said() { echo "$1" >> "notes.$shard"; }
checkpoint() {
    printf '{"action":"checkpoint","sequenceNumber":%s,"subSequenceNumber":null}\n' "$1"
    read -r reply
    reply=${reply##*'"error":'}
    [ "$reply" = 'null}' ] || said "error $reply"
}
once() {
    [ -e "once.$1" ] || return 1
    how=$(cat "once.$1")
    rm "once.$1"
    said "$how"
}
while read -r line; do
    action=${line#'{"action":"'}
    action=${action%%'"'*}
    rest=$line
    case $action in
    initialize)
        shard=${line#*'"shardId":"'}
        shard=${shard%%'"'*}
        echo "hello from $shard"
        echo "trouble at $shard" >&2
        said initialize
        echo $$ >> "pids.$shard"
        ;;
    processRecords)
        while case $rest in *'{"data":"'*) ;; *) false ;; esac; do
            rest=${rest#*'{"data":"'}
            data=$(printf '%s' "${rest%%'"'*}" | base64 -d)
            said "$data"
            if once "$data"; then
                case $how in
                exit) exit 3 ;;
                hang) sleep 600 & echo $! > sleeper; wait ;;
                beyond) checkpoint '"99999999999999999999999999999999999999999999999999999999"' ;;
                esac
            fi
        done
        checkpoint null
        ;;
    shutdown) said "shutdown ${line#*'"reason":'}" ;;
    *) said "$action" ;;
    esac
    if [ "$action" = shardEnded ] && once end; then
        until [ -e go ]; do sleep 0.05; done
    fi
    case $line in *shardEnded*|*TERMINATE*) checkpoint null ;; *leaseLost*) checkpoint null ;; esac
    printf '{"action":"status","responseFor":"%s"}\n' "$action"
done
"#;

/// A stream of two shards, and the worker.
struct Daemon {
    stage: CommandFixture,
}

impl Daemon {
    fn new(more: &str) -> Self {
        let stage = CommandFixture::start(&["orders:2"]);
        let folder = stage.folder.path();
        std::fs::write(folder.join("worker.sh"), WORKER).unwrap();
        let properties = format!(
            "executableName = sh worker.sh\napplicationName = app\nstreamName = orders\n\
             AwsCredentialsProvider = KclStaticCredentialsProvider|local|local\n\
             regionName = us-east-1\nkinesisEndpoint = {0}\ndynamoDBEndpoint = {0}\n\
             initialPositionInStream = TRIM_HORIZON\nretrievalMode = POLLING\n\
             idleTimeBetweenReadsInMillis = 250\nmetricsLevel = NONE\nworkerId = us\n{more}\n",
            stage.endpoint
        );
        std::fs::write(folder.join("app.properties"), properties).unwrap();
        Self { stage }
    }

    fn start(&self) -> RunningCommand {
        self.stage.spawn("multilang --properties-file app.properties")
    }

    /// Puts records into the first or the second shard.
    fn put(&self, shard: usize, data: &[&str]) {
        let hash = ["0", "340282366920938463463374607431768211455"][shard];
        let line = |data: &&str| {
            format!("{{\"key\":\"k\",\"data\":\"{data}\",\"hash_key\":\"{hash}\"}}\n")
        };
        self.stage.run("put orders", &data.iter().map(line).collect::<String>()).ok();
    }

    /// Returns the log of a shard's worker.
    fn notes(&self, shard: usize) -> Vec<String> {
        let path = self.stage.folder.path().join(format!("notes.shardId-{shard:012}"));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until the log of a shard ends with `last`.
    #[track_caller]
    fn until_noted(&self, shard: usize, last: &str) {
        let noted = || self.notes(shard).last().is_some_and(|line| line == last);
        until(&format!("{last} of shard {shard}: {:?}", self.notes(shard)), noted);
    }

    fn misbehave(&self, data: &str, how: &str) {
        std::fs::write(self.stage.folder.path().join(format!("once.{data}")), how).unwrap();
    }

    /// Returns the row of a shard in the application's table, in KCL's layout.
    fn row(&self, shard: usize) -> serde_json::Value {
        let key = serde_json::json!({"leaseKey": {"S": format!("shardId-{shard:012}")}});
        let ask = serde_json::json!({"TableName": "app", "Key": key, "ConsistentRead": true});
        self.stage.dynamodb("GetItem", &ask)["Item"].clone()
    }

    #[track_caller]
    fn stopped(&self, daemon: RunningCommand) -> CommandResult {
        let ran = daemon.stop().ok();
        for shard in 0..2 {
            let row = self.row(shard);
            assert!(row["leaseOwner"].is_null(), "shard {shard} was not given back: {row}");
        }
        ran
    }
}

#[test]
fn a_child_that_fails_gets_its_batch_again_and_no_other_shard_notices() {
    let daemon = Daemon::new("");
    let running = daemon.start();
    daemon.put(0, &["a"]);
    daemon.put(1, &["x"]);
    daemon.until_noted(0, "a");
    daemon.until_noted(1, "x");
    daemon.misbehave("b", "exit");
    daemon.put(0, &["b"]);
    daemon.put(1, &["y"]);
    daemon.until_noted(1, "y");
    until("the batch again", || daemon.notes(0).iter().filter(|line| *line == "b").count() == 2);
    daemon.put(0, &["c"]);
    daemon.until_noted(0, "c");
    let ran = daemon.stopped(running);
    let stop = ["shutdownRequested", "leaseLost", "error \"InvalidStateException\"}"];
    let first = ["initialize", "a", "b", "exit", "initialize", "b", "c"];
    assert_eq!(daemon.notes(0), [&first[..], &stop].concat());
    assert_eq!(daemon.notes(1), [&["initialize", "x", "y"][..], &stop].concat());
    assert!(ran.err.contains("the child failed; restarting it"), "{}", ran.err);
    assert!(ran.err.contains("exit status: 3"), "{}", ran.err);
    // The output of a worker is logged with its shard and process id.
    let pid = std::fs::read_to_string(daemon.stage.folder.path().join("pids.shardId-000000000001"));
    let pid = format!("pid={}", pid.unwrap().trim());
    for text in ["hello from shardId-000000000001", "trouble at shardId-000000000001"] {
        let line = ran.err.lines().find(|line| line.contains(text)).unwrap_or_default();
        assert!(line.contains(&pid) && line.contains("shard="), "{text}: {line:?}");
    }
    // A second daemon resumes after the first one.
    let running = daemon.start();
    daemon.put(0, &["d"]);
    daemon.until_noted(0, "d");
    daemon.stopped(running);
    let (notes, again) = (daemon.notes(0), [&["initialize", "d"][..], &stop].concat());
    assert_eq!(notes[notes.len() - again.len()..], again, "{notes:?}");
}

#[test]
fn a_child_that_hangs_is_killed_with_all_that_it_started() {
    let daemon = Daemon::new("timeoutInSeconds = 1");
    let running = daemon.start();
    daemon.misbehave("b", "hang");
    daemon.put(0, &["a", "b"]);
    daemon.put(1, &["x"]);
    until("the batch again", || daemon.notes(0).iter().filter(|line| *line == "b").count() == 2);
    daemon.until_noted(1, "x");
    let sleeper = std::fs::read_to_string(daemon.stage.folder.path().join("sleeper")).unwrap();
    let stat = format!("/proc/{}/stat", sleeper.trim());
    until("the end of what hung", || {
        !Path::new(&stat).exists()
            || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "))
    });
    let ran = daemon.stopped(running);
    assert!(ran.err.contains("the child did not answer processRecords within 1 s"), "{}", ran.err);
    assert_eq!(daemon.notes(1)[..2], ["initialize", "x"], "the other shard did not notice");
}

#[test]
fn a_checkpoint_that_can_not_be_is_answered_with_javas_error() {
    let daemon = Daemon::new("");
    let running = daemon.start();
    daemon.misbehave("b", "beyond");
    daemon.put(0, &["a", "b", "c"]);
    daemon.until_noted(0, "c");
    daemon.stopped(running);
    let notes = daemon.notes(0);
    let error = notes.iter().find(|line| line.starts_with("error"));
    assert_eq!(error.map(String::as_str), Some("error \"IllegalArgumentException\"}"), "{notes:?}");
}

#[test]
fn the_end_of_a_shard_is_told_in_the_words_that_were_chosen() {
    for (more, ended, lost) in [
        ("", "shardEnded", "leaseLost"),
        ("shutdownMessages = kcl1", "shutdown \"TERMINATE\"}", "shutdown \"ZOMBIE\"}"),
    ] {
        let daemon = Daemon::new(more);
        let running = daemon.start();
        daemon.put(0, &["a"]);
        daemon.until_noted(0, "a");
        daemon.stage.split("orders");
        daemon.put(0, &["b"]);
        daemon.until_noted(2, "b");
        assert_eq!(daemon.notes(0), ["initialize", "a", ended], "{more}");
        assert_eq!(daemon.row(0)["checkpoint"]["S"], "SHARD_END", "{more}");
        daemon.stopped(running);
        let notes = daemon.notes(2);
        assert_eq!(notes[..4], ["initialize", "b", "shutdownRequested", lost], "{more}");
    }
}

#[test]
fn a_child_at_the_end_of_its_shard_may_checkpoint_it_within_the_grace_of_a_stop() {
    let daemon = Daemon::new("");
    daemon.misbehave("end", "waits");
    let running = daemon.start();
    daemon.put(0, &["a"]);
    daemon.until_noted(0, "a");
    daemon.until_noted(1, "initialize");
    daemon.stage.split("orders");
    daemon.until_noted(0, "waits");
    running.signal("TERM");
    // The other child has handled its stop: it checkpoints where Java permits none.
    daemon.until_noted(1, "error \"InvalidStateException\"}");
    std::fs::write(daemon.stage.folder.path().join("go"), "").unwrap();
    running.wait().ok();
    assert_eq!(daemon.notes(0), ["initialize", "a", "shardEnded", "waits"]);
    assert_eq!(daemon.row(0)["checkpoint"]["S"], "SHARD_END");
}
