//! Snapshots of the commands' literal output, compared with the files in `snapshots`.
//!
//! `ANABRANCH_BLESS=1` rewrites the files. Review the changes before keeping them.

use crate::stage::{CommandFixture, CommandResult, program, run, until};
use std::fmt::Write as _;
use std::path::Path;

/// Compares a text with the snapshot of that name.
#[track_caller]
fn check(name: &str, text: &str) {
    let path = format!("{}/tests/command/snapshots/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let path = Path::new(&path);
    if std::env::var_os("ANABRANCH_BLESS").is_some() {
        std::fs::write(path, text).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(text, expected, "{name} prints something else than {}", path.display());
}

/// Formats both outputs and the exit code, without parts that vary from run to run.
fn shown(stage: &CommandFixture, words: &str, ran: &CommandResult) -> String {
    let mut text = format!("$ anabranch {words}\n");
    for line in ran.out.lines() {
        let _ = writeln!(text, "{}", normal(stage, line));
    }
    for line in ran.err.lines() {
        let _ = writeln!(text, "[2] {}", normal(stage, line));
    }
    let _ = writeln!(text, "[exit code {}]", ran.code.unwrap());
    text
}

/// Replaces times, sequence numbers, worker names and padding in a line.
fn normal(stage: &CommandFixture, line: &str) -> String {
    let line = line.replace(&stage.endpoint, "ENDPOINT");
    let mut text = String::new();
    let mut rest = line.as_str();
    while let Some(letter) = rest.chars().next() {
        let word = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric()).len();
        let (token, after) = rest.split_at(word.max(letter.len_utf8()));
        match known(token, after, text.chars().last()) {
            VaryingToken::Plain => text.push_str(token),
            VaryingToken::As(name) => text.push_str(name),
            VaryingToken::Time(end) => {
                text.push_str("TIME");
                rest = &after[end..];
                continue;
            }
            VaryingToken::Span(end) => {
                text.push_str("SPAN");
                rest = &after[end..];
                continue;
            }
        }
        rest = after;
    }
    let padded = |text: &str| text.contains("   ");
    while padded(&text) {
        text = text.replace("   ", "  ");
    }
    text.trim_end().to_owned()
}

/// Classification of a token that may vary from run to run.
enum VaryingToken {
    Plain,
    As(&'static str),
    /// A time of day, with the length of its remaining text.
    Time(usize),
    /// A duration, with the length of its remaining text.
    Span(usize),
}

fn known(token: &str, after: &str, before: Option<char>) -> VaryingToken {
    let digits = token.bytes().all(|byte| byte.is_ascii_digit());
    let hex = token.len() == 16 && token.bytes().all(|byte| byte.is_ascii_hexdigit());
    if hex && before == Some('/') {
        return VaryingToken::As("JOIN");
    }
    if digits && before == Some('-') && after.starts_with('/') {
        return VaryingToken::As("PROCESS");
    }
    if !digits {
        return VaryingToken::Plain;
    }
    // Example: 2026-05-01T12:00:00.250Z
    if token.len() == 4
        && after.starts_with('-')
        && let Some(end) = after.find('Z').filter(|end| *end == 19)
    {
        return VaryingToken::Time(end + 1);
    }
    for unit in [" ms", " min"] {
        if after.starts_with(unit) {
            let seconds = after.strip_prefix(" min ").and_then(|rest| rest.find(" s"));
            return VaryingToken::Span(seconds.map_or(unit.len(), |end| " min ".len() + end + 2));
        }
    }
    if after.starts_with('.') && after.get(2..4) == Some(" s") {
        return VaryingToken::Span(4);
    }
    match token.len() {
        20.. => VaryingToken::As("SEQUENCE"),
        13 => VaryingToken::As("MS"),
        _ if before == Some('…') => VaryingToken::As("NUMBER"),
        _ => VaryingToken::Plain,
    }
}

/// Returns a stream of three generations, and an application that has read the first.
fn stage() -> CommandFixture {
    let stage = CommandFixture::start(&["orders:1", "clicks:1"]);
    stage.run("put orders --lines --key k", "1\n2\n3\n").ok();
    let mut running = stage.spawn("consume orders --app app --leases sqlite:leases.db");
    running.lines(3);
    running.stop().ok();
    stage.split("orders");
    stage.run("put orders --lines --key k", "4\n5\n").ok();
    stage
}

#[test]
fn tables_and_their_json() {
    let stage = stage();
    let shards = "shards orders --app app --leases sqlite:leases.db";
    let leases = "leases app --leases sqlite:leases.db";
    let doctor = "doctor orders app --leases sqlite:leases.db --watch 1s";
    let mut all = String::new();
    for words in [
        "shards orders",
        "shards orders --json",
        shards,
        leases,
        &format!("{leases} --json"),
        &format!("{leases} show 0"),
        &format!("{leases} reset --to trim"),
        &format!("{leases} reset --to trim --json"),
        &format!("{leases} release"),
        doctor,
        &format!("{doctor} --json"),
    ] {
        all.push_str(&shown(&stage, words, &stage.run(words, "")));
        all.push('\n');
    }
    check("tables", &all);
}

#[test]
fn what_a_doctor_says_of_a_worker_that_was_killed() {
    let stage = stage();
    let mut running =
        stage.spawn("consume orders --app app --leases sqlite:leases.db --lease-time 2s");
    running.lines(2);
    let doctor = "doctor orders app --leases sqlite:leases.db --watch 2s";
    // The parent's end and the children's owners are written after the records.
    let mut well = None;
    until("a healthy application", || {
        let ran = stage.run(doctor, "");
        let healthy = ran.code == Some(0) && ran.out.contains("2 held by live workers");
        well = Some(ran);
        healthy
    });
    running.signal("KILL");
    running.wait();
    let sick = stage.run(doctor, "");
    let text =
        format!("{}\n{}", shown(&stage, doctor, &well.unwrap()), shown(&stage, doctor, &sick));
    check("doctor", &text);
}

#[test]
fn summaries_of_a_put() {
    let stage = CommandFixture::start(&["orders:1"]);
    let mut all = String::new();
    for (words, input) in [
        ("put orders", "{\"key\":\"a\",\"data\":\"1\"}\n{\"key\":\"b\",\"data\":\"2\"}\n"),
        ("put orders", "{\"key\":\"a\"}\n"),
        ("put orders --skip-bad-lines", "nonsense\n{\"key\":\"b\",\"data\":\"2\"}\n"),
        ("put orders", ""),
    ] {
        all.push_str(&shown(&stage, words, &stage.run(words, input)));
        all.push('\n');
    }
    check("put", &all);
}

#[test]
fn mistakes_and_the_way_out_of_them() {
    let stage = stage();
    let mut all = String::new();
    for words in [
        "puts orders",
        "put",
        "put ordres",
        "put orders --lines",
        "put orders nosuchfile",
        "tail orders --since yesterday",
        "cp a b",
        "cp stream:orders stream:orders",
        "consume orders",
        "consume orders --app a",
        "consume orders --app a --leases redis:x",
        "consume orders --app a --leases memory --timeout 5s",
        "redrive parked",
        "redrive stream:aside --print",
        "shards orders --app app --leases sqlite:nowhere.db",
        "leases app",
        "leases app --leases memory",
        "leases other --leases sqlite:leases.db",
        "leases app --leases sqlite:leases.db --stream clicks",
        "leases app --leases sqlite:leases.db show 9",
        "leases app --leases sqlite:leases.db reset --to gestern",
        "leases app --leases sqlite:leases.db reset --shard 9 --to trim",
        "leases app --leases sqlite:leases.db restore nosuchfile",
        "leases app --leases dynamodb:nowhere",
        "leases app --leases kcl:nowhere",
        "doctor orders",
        "doctor orders other --leases sqlite:leases.db",
        "completions tcsh",
    ] {
        all.push_str(&shown(&stage, words, &stage.run(words, "")));
        all.push('\n');
    }
    let mut command = program();
    command.args(["shards", "orders"]);
    all.push_str(&shown(&stage, "shards orders (nothing is configured)", &run(command, "")));
    check("mistakes", &all);
}

/// Runs a command in a terminal with `columns` columns, and returns the lines printed.
fn in_terminal(stage: &CommandFixture, words: &str, columns: usize) -> Vec<String> {
    let program = env!("CARGO_BIN_EXE_anabranch");
    let line = format!("stty cols {columns} rows 40; {program} {words}");
    let mut command = stage.command("");
    let mut script = std::process::Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).current_dir(stage.folder.path());
    for (name, value) in command.env("ANABRANCH_ENDPOINT", &stage.endpoint).get_envs() {
        script.env(name, value.unwrap_or_default());
    }
    let ran = run(script, "");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.out.lines().map(|line| line.trim_end_matches('\r').to_owned()).collect()
}

#[test]
fn tables_are_as_wide_as_the_terminal_and_no_line_of_them_wraps() {
    let stage = stage();
    let shards = "shards orders --app app --leases sqlite:leases.db";
    let whole = stage.run(shards, "").ok().out;
    for columns in [40, 60, 80, 100, 200] {
        for words in [shards, "leases app --leases sqlite:leases.db"] {
            let lines = in_terminal(&stage, words, columns);
            assert!(lines.len() >= 3, "{words}: {lines:?}");
            // The line above a table is a sentence and may be longer.
            for line in &lines[1..] {
                assert!(line.chars().count() <= columns, "{columns}: {lines:#?}");
            }
        }
    }
    let at = |columns| in_terminal(&stage, shards, columns)[1..].to_vec();
    let same: Vec<_> = whole.lines().skip(1).collect();
    assert_eq!(at(200), same, "there is room for all of it");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&at(100)[0]), ["shard", "state", "keys", "owner", "checkpoint", "lag"]);
    assert_eq!(words(&at(80)[0]), ["shard", "owner", "lag"]);
    let row = "├─ shard-1  -      -    not read: lease created when shard-0 is done";
    assert_eq!(at(80)[2], row);
    let row = "├─ shard-1  -      -    not read: lease created when shard-…";
    assert_eq!(at(60)[2], row);
}
