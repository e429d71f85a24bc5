//! Tests of `anabranch shards` and `anabranch leases`, on every store that needs no separate
//! server.

use crate::stage::{CommandFixture, RunningCommand, until};
use serde_json::{Value, json};
use std::process::Command;

/// Lease stores that need no separate server.
const STORES: [&str; 3] = ["sqlite:leases.db", "dynamodb:app", "kcl:app"];

fn put(stage: &CommandFixture, from: usize, to: usize) {
    let line = |n: usize| format!("{{\"key\":\"k{}\",\"data\":\"{n}\"}}", n % 5);
    stage.run("put orders", &(from..to).map(line).collect::<Vec<_>>().join("\n")).ok();
}

fn consumer(stage: &CommandFixture, store: &str) -> RunningCommand {
    stage.spawn(&format!(
        "consume orders --app app --leases {store} --json --lease-time 2s --grace-period 5s"
    ))
}

/// Consumes `count` records and stops gracefully.
fn consume(stage: &CommandFixture, store: &str, count: usize) -> Vec<String> {
    let mut running = consumer(stage, store);
    let lines = running.lines(count);
    let ran = running.stop().ok();
    assert_eq!(ran.out, "", "{store}: more than {count} came");
    lines
}

fn leases(stage: &CommandFixture, store: &str, words: &str) -> crate::stage::CommandResult {
    stage.run(&format!("leases app --leases {store} --stream orders --lease-time 2s {words}"), "")
}

/// Returns the checkpoints by shard, without the traces of a worker.
fn checkpoints(stage: &CommandFixture, store: &str) -> Vec<(String, String)> {
    let ran = leases(stage, store, "list --json").ok();
    let all: Value = serde_json::from_str(&ran.out).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let rows = all["streams"][0]["leases"].as_array().unwrap();
    rows.iter().map(|row| (text(&row["shard"]), text(&row["checkpoint"]))).collect()
}

#[test]
fn the_tree_shows_who_reads_what_and_why_not() {
    let stage = CommandFixture::start(&["orders:2"]);
    put(&stage, 0, 20);
    let plain = stage.run("shards orders", "").ok();
    assert!(plain.out.contains("orders: ACTIVE, provisioned, 2 open shards of 2"), "{plain:?}");
    consume(&stage, "sqlite:leases.db", 20);
    stage.split("orders");
    put(&stage, 20, 40);
    let shown = stage.run("shards orders --app app --leases sqlite:leases.db", "").ok();
    let expected = "\
orders: ACTIVE, provisioned, 3 open shards of 4
shard                    state   keys    owner  checkpoint   lag   
shardId-000000000000     closed  50.0 %  -      NUMBER       0     not read: no worker has taken it
├─ shardId-000000000002  open    25.0 %  -      -            -     not read: lease created when shard-0 is done
└─ shardId-000000000003  open    25.0 %  -      -            -     not read: lease created when shard-0 is done
shardId-000000000001     open    50.0 %  -      NUMBER       TIME  not read: no worker has taken it
";
    assert_eq!(normal(&shown.out), normal(expected), "{}", shown.out);
    let json = stage.run("shards orders --app app --leases sqlite:leases.db --json", "").ok();
    let rows: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(rows[2]["standing"], "row-comes");
    assert!(rows[1]["lag_ms"].as_u64().unwrap() > 0, "{json:?}");
    let hole = stage.run("shards orders --app other --leases sqlite:leases.db", "");
    assert_eq!(hole.code, Some(1), "{hole:?}");
    assert!(hole.out.contains("HOLE"), "{hole:?}");
}

/// Normalizes a table: replaces numbers and times, and removes padding.
fn normal(text: &str) -> Vec<String> {
    let word = |word: &str| {
        if word.starts_with('…') { "NUMBER".to_owned() } else { word.to_owned() }
    };
    let line = |line: &str| {
        let words: Vec<String> = line.split_whitespace().map(word).collect();
        let line = words.join(" ");
        // The age of waiting records differs from run to run.
        match (line.find("NUMBER "), line.find(" not read")) {
            (Some(number), Some(not)) if !line[number..].starts_with("NUMBER 0 ") => {
                format!("{}NUMBER TIME{}", &line[..number], &line[not..])
            }
            _ => line,
        }
    };
    text.lines().map(line).collect()
}

#[test]
fn records_are_read_again_from_where_they_are_reset_to() {
    for store in STORES {
        let stage = CommandFixture::start(&["orders:1"]);
        put(&stage, 0, 10);
        consume(&stage, store, 10);
        stage.split("orders");
        put(&stage, 10, 20);
        consume(&stage, store, 10);
        let before = checkpoints(&stage, store);

        let dry = leases(&stage, store, "reset --to trim").ok();
        assert!(dry.err.contains("nothing was written"), "{store}: {dry:?}");
        assert_eq!(checkpoints(&stage, store), before, "{store}");

        let done = leases(&stage, store, "reset --to trim --snapshot before.json --yes").ok();
        assert!(done.err.contains("before.json"), "{store}: {done:?}");
        let again = consume(&stage, store, 20);
        let data = |line: &String| serde_json::from_str::<Value>(line).unwrap()["data"].clone();
        for key in 0..5 {
            let of_key: Vec<usize> = again
                .iter()
                .map(|line| data(line).as_str().unwrap().parse::<usize>().unwrap())
                .filter(|n| n % 5 == key)
                .collect();
            assert!(of_key.is_sorted() && of_key.len() == 4, "{store}: {of_key:?}");
        }

        leases(&stage, store, "reset --to trim --yes").ok();
        leases(&stage, store, "restore before.json --yes").ok();
        assert_eq!(checkpoints(&stage, store), before, "{store}");
        put(&stage, 20, 25);
        consume(&stage, store, 5);
    }
}

/// Returns a Python command with the lease database open as `db`.
fn with_database(stage: &CommandFixture, code: &str) -> Command {
    let open = "import sqlite3, sys; db = sqlite3.connect('leases.db', isolation_level=None)";
    let mut command = Command::new("python3");
    command.args(["-c", &format!("{open}\n{code}")]).current_dir(stage.folder.path());
    command
}

#[test]
fn a_reset_that_fails_half_way_names_the_shard_and_the_way_back() {
    let (stage, store) = (CommandFixture::start(&["orders:1"]), "sqlite:leases.db");
    put(&stage, 0, 10);
    consume(&stage, store, 10);
    let before = checkpoints(&stage, store);
    let trigger = "db.execute(\"CREATE TRIGGER stuck BEFORE DELETE ON anabranch_lease BEGIN \
                   SELECT RAISE(ABORT, 'stuck'); END\")";
    assert!(with_database(&stage, trigger).status().unwrap().success());
    let failed = leases(&stage, store, "reset --to trim --snapshot before.json --yes");
    assert_eq!(failed.code, Some(1), "{failed:?}");
    for expected in [
        "orders/shardId-000000000000 may be at SHARD_END",
        "before workers start, finish the reset with the same command",
        "`anabranch leases app restore before.json --yes --stream orders --leases sqlite:leases.db",
    ] {
        assert!(failed.err.contains(expected), "{expected}: {failed:?}");
    }
    assert_eq!(checkpoints(&stage, store)[0].1, "SHARD_END", "as it was said");
    assert!(with_database(&stage, "db.execute('DROP TRIGGER stuck')").status().unwrap().success());
    leases(&stage, store, "restore before.json --yes").ok();
    assert_eq!(checkpoints(&stage, store), before);
}

/// Returns the doctor's findings as kind and suggested fix.
fn found(stage: &CommandFixture, store: &str) -> Vec<(String, String)> {
    let ran = stage.run(&format!("doctor orders app --leases {store} --watch 1s --json"), "");
    let found: Vec<Value> = serde_json::from_str(&ran.out).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    found.iter().map(|it| (text(&it["kind"]), text(&it["mend"]))).collect()
}

#[test]
fn a_reset_that_was_cut_off_is_found_and_the_command_that_is_named_finishes_it() {
    // The interrupted state: the shard's row is at SHARD_END, or is gone.
    for (trigger, kinds) in [
        ("BEFORE DELETE ON anabranch_lease", &["unfinished-change", "ended-too-early"][..]),
        ("BEFORE INSERT ON anabranch_lease", &["unfinished-change", "hole"]),
    ] {
        let (stage, store) = (CommandFixture::start(&["orders:1"]), "sqlite:leases.db");
        put(&stage, 0, 10);
        consume(&stage, store, 10);
        let code = format!(
            "db.execute(\"CREATE TRIGGER stuck {trigger} BEGIN SELECT RAISE(ABORT, 'stuck'); END\")"
        );
        assert!(with_database(&stage, &code).status().unwrap().success());
        let failed = leases(&stage, store, "reset --to trim --yes");
        assert_eq!(failed.code, Some(1), "{failed:?}");
        let code = "db.execute('DROP TRIGGER stuck')";
        assert!(with_database(&stage, code).status().unwrap().success());

        let sick = found(&stage, store);
        let named: Vec<_> = sick.iter().map(|(kind, _)| kind.as_str()).collect();
        assert_eq!(named[..2], *kinds, "{sick:?}");
        let shards = stage.run(&format!("shards orders --app app --leases {store}"), "");
        assert_eq!(shards.code, Some(1), "{shards:?}");
        // The suggested command, as a user would copy it.
        let (_, mend) = sick[0].1.split_once("anabranch ").unwrap();
        assert!(mend.starts_with("leases app reset --to trim --yes --stream orders"), "{mend}");
        let mut command = crate::stage::program();
        command.args(mend.split_whitespace()).args(["--lease-time", "1s"]);
        command.current_dir(stage.folder.path());
        crate::stage::run(command, "").ok();
        let well = found(&stage, store);
        assert_eq!(well.len(), 1, "{well:?}");
        assert_eq!(well[0].0, "no-worker");
        consume(&stage, store, 10);
    }
}

#[test]
fn a_reset_that_is_killed_again_and_again_is_finished_by_the_last_one() {
    for store in ["sqlite:leases.db", "dynamodb:app"] {
        let stage = CommandFixture::start(&["orders:6"]);
        put(&stage, 0, 60);
        consume(&stage, store, 60);
        let reset = |file: &str| {
            stage.spawn(&format!(
                "leases app --leases {store} --stream orders --lease-time 500ms reset --to trim \
                 --yes --snapshot {file}"
            ))
        };
        for round in 0..6 {
            let file = format!("{round}.json");
            let mut running = reset(&file);
            until("the snapshot", || {
                stage.folder.path().join(&file).exists()
                    || running.child.try_wait().unwrap().is_some()
            });
            // Each round is killed at a different point of its work.
            std::thread::sleep(std::time::Duration::from_millis(3 * round));
            running.child.kill().unwrap();
            running.wait();
        }
        reset("last.json").wait().ok();
        assert_eq!(
            found(&stage, store).iter().map(|it| it.0.as_str()).collect::<Vec<_>>(),
            ["no-worker"]
        );
        consume(&stage, store, 60);
    }
}

#[test]
fn a_reset_waits_for_a_busy_store_and_stops_between_two_shards() {
    let (stage, store) = (CommandFixture::start(&["orders:2"]), "sqlite:leases.db");
    put(&stage, 0, 20);
    consume(&stage, store, 20);
    let before = checkpoints(&stage, store);
    let hold = |signals: &[&str]| {
        // Longer than a single call waits for the database file.
        let lock = "db.execute('BEGIN IMMEDIATE'); print('held', flush=True); sys.stdin.read()";
        let mut locker = with_database(&stage, lock);
        let mut locker = locker
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut held = String::new();
        let mut out = std::io::BufReader::new(locker.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut held).unwrap();
        let file = format!("{}.json", signals.join("-"));
        let reset = stage.spawn(&format!(
            "leases app --leases {store} --stream orders --lease-time 2s reset --to trim --yes \
             --snapshot {file}"
        ));
        until("the first change", || stage.folder.path().join(&file).exists());
        std::thread::sleep(std::time::Duration::from_secs(4));
        for signal in signals {
            reset.signal(signal);
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        // After one signal it finishes the current change. After two it no longer waits for the
        // file.
        let (ran, free) = if signals.len() > 1 {
            let ran = reset.wait();
            (ran, locker.stdin.take())
        } else {
            drop(locker.stdin.take());
            (reset.wait(), None)
        };
        drop(free);
        locker.wait().unwrap();
        ran
    };
    let forced = hold(&["TERM", "INT"]);
    assert_eq!(forced.code, Some(1), "{forced:?}");
    assert!(forced.err.contains("stopped at once by a second signal"), "{forced:?}");
    assert_eq!(checkpoints(&stage, store), before, "nothing was changed");
    let stopped = hold(&["TERM"]);
    assert_eq!(stopped.code, Some(1), "{stopped:?}");
    assert!(stopped.err.contains("stopped before all leases were changed"), "{stopped:?}");
    let after = checkpoints(&stage, store);
    assert_eq!(after[0].1, "TRIM_HORIZON", "the first one was done to its end");
    assert_eq!(after[1], before[1], "the second one was not begun");
    hold(&[]).ok();
    assert_eq!(checkpoints(&stage, store)[1].1, "TRIM_HORIZON");
}

#[test]
fn a_reset_to_a_time_or_to_now_reads_from_there() {
    for store in STORES {
        let stage = CommandFixture::start(&["orders:1"]);
        put(&stage, 0, 5);
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        let ran = stage.run("tail orders --until-caught-up --json", "").ok();
        let last: Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        put(&stage, 5, 12);
        consume(&stage, store, 12);
        // A time after the fifth record and before the sixth.
        let time = humantime::parse_rfc3339(last["arrived"].as_str().unwrap()).unwrap();
        let time = humantime::format_rfc3339_millis(time + std::time::Duration::from_millis(500));
        leases(&stage, store, &format!("reset --to {time} --yes")).ok();
        let lines = consume(&stage, store, 7);
        assert!(lines[0].contains("\"data\":\"5\""), "{store}: {lines:?}");
        leases(&stage, store, "reset --to trim --yes").ok();
        // The service reports its time in whole seconds, and no record of this second may be
        // skipped.
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        leases(&stage, store, "reset --to latest --yes").ok();
        let mut running = consumer(&stage, store);
        until("an owner", || {
            let listed = leases(&stage, store, "show 0 --json").ok();
            serde_json::from_str::<Value>(&listed.out).unwrap()["owner"].is_string()
        });
        put(&stage, 12, 13);
        assert!(running.lines(1)[0].contains("\"data\":\"12\""), "{store}");
        running.stop().ok();
    }
}

#[test]
fn a_reset_to_a_time_goes_on_where_an_idle_shard_takes_few_reads() {
    let stage = CommandFixture::start_with(&["orders:2"], &["--enforce-limits"]);
    put(&stage, 0, 3);
    consume(&stage, "kcl:app", 3);
    // One or both shards are idle by then: every window is searched, with one read each.
    let time = humantime::format_rfc3339_millis(std::time::SystemTime::UNIX_EPOCH);
    leases(&stage, "kcl:app", &format!("reset --to {time} --yes")).ok();
    let places = checkpoints(&stage, "kcl:app");
    assert!(places.iter().all(|(_, place)| place == "TRIM_HORIZON"), "{places:?}");
    stage.fault(&json!({"operation": "GetRecords", "effect": "Throttle"}));
    let refused = leases(&stage, "kcl:app", &format!("reset --to {time} --yes"));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.err.contains("nothing was changed"), "{refused:?}");
}

#[test]
fn nothing_is_changed_while_a_worker_is_alive_and_the_leases_of_a_dead_one_can_be_released() {
    for store in STORES {
        let stage = CommandFixture::start(&["orders:1"]);
        put(&stage, 0, 5);
        let mut running = consumer(&stage, store);
        running.lines(5);
        for words in ["reset --to trim --yes", "release --yes"] {
            let refused = leases(&stage, store, words);
            assert_eq!(refused.code, Some(2), "{store}: {refused:?}");
            assert!(refused.err.contains("are alive"), "{store}: {refused:?}");
        }
        running.signal("KILL");
        running.wait();
        let released = leases(&stage, store, "release --yes").ok();
        assert!(released.err.contains("1 leases were released"), "{store}: {released:?}");
        let shown = leases(&stage, store, "show 0 --json").ok();
        let row: Value = serde_json::from_str(&shown.out).unwrap();
        assert!(row["owner"].is_null(), "{store}: {row}");
    }
}

#[test]
fn an_application_moves_to_another_store_and_goes_on_there() {
    for (from, to) in [
        ("sqlite:leases.db", "dynamodb:app"),
        ("dynamodb:app", "sqlite:leases.db"),
        ("kcl:app", "sqlite:leases.db"),
        ("sqlite:leases.db", "kcl:app"),
    ] {
        let stage = CommandFixture::start(&["orders:2"]);
        put(&stage, 0, 20);
        consume(&stage, from, 20);
        stage.split("orders");
        put(&stage, 20, 30);
        let dry = leases(&stage, from, &format!("copy --to {to}")).ok();
        assert!(dry.err.contains("nothing was written"), "{dry:?}");
        leases(&stage, from, &format!("copy --from {from} --to {to} --yes")).ok();
        consume(&stage, to, 10);
        let twice = leases(&stage, from, &format!("copy --to {to} --yes"));
        assert_eq!(twice.code, Some(2), "{from} to {to}: {twice:?}");
    }
}

#[test]
fn a_copy_has_what_the_leases_say_once_no_worker_is_alive() {
    let (stage, store) = (CommandFixture::start(&["orders:1"]), "sqlite:leases.db");
    put(&stage, 0, 5);
    let mut killed = consumer(&stage, store);
    killed.lines(5);
    killed.signal("KILL");
    killed.wait();
    let options = format!("leases app --leases {store} --stream orders");
    // A lease changes while the dead worker's heartbeat is watched.
    let mut command =
        stage.command(&format!("{options} --lease-time 8s copy --to dynamodb:app --yes"));
    let mut copy = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = std::io::BufReader::new(copy.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert!(line.contains("watching 1 heartbeats"), "{line}");
    stage.run(&format!("{options} --lease-time 500ms reset --to trim --yes"), "").ok();
    std::io::Read::read_to_string(&mut said, &mut line).unwrap();
    assert!(copy.wait().unwrap().success(), "{line}");
    assert_eq!(checkpoints(&stage, "dynamodb:app")[0].1, "TRIM_HORIZON");
}

#[test]
fn an_application_that_is_not_there_is_refused_and_nothing_is_made() {
    let stage = CommandFixture::start(&["orders:1"]);
    for (store, expected) in
        [("sqlite:leases.db", "no file leases.db"), ("dynamodb:app", "app"), ("kcl:app", "app")]
    {
        let ran = leases(&stage, store, "");
        assert_eq!(ran.code, Some(2), "{store}: {ran:?}");
        assert!(ran.err.contains(expected), "{store}: {ran:?}");
    }
    assert!(!stage.folder.path().join("leases.db").exists());
    put(&stage, 0, 1);
    consume(&stage, "kcl:app", 1);
    let wrong = leases(&stage, "dynamodb:app", "");
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
}
