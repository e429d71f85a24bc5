//! `cargo xtask test`: the parts in order, the minutes of each beside its budget, the closing line.

use crate::tally::Tally;
use crate::{interop, parts, shell, sim, tidy};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Minutes that a part may take on 2 cores, cold. Printed beside what it took; no test asserts it.
const BUILD_AND_LINT_MINUTES: f64 = 12.0;
const TESTS_MINUTES: f64 = 6.0;
const SIMULATOR_MINUTES: f64 = 6.0;
const REAL_PARTS_MINUTES: f64 = 10.0;

/// Runs everything.
pub(crate) fn run() -> ExitCode {
    let mut tally = Tally::default();
    let mut times = Vec::new();
    timed(&mut times, "build and lint", BUILD_AND_LINT_MINUTES, || {
        tally.check("build", build());
        tally.merge(tidy::run());
    });
    timed(&mut times, "tests", TESTS_MINUTES, || cargo_tests(&mut tally));
    timed(&mut times, "simulator", SIMULATOR_MINUTES, || sim::tests(&mut tally));
    timed(&mut times, "real parts", REAL_PARTS_MINUTES, || tally.merge(interop::run(&[])));

    println!();
    for (name, took, budget) in times {
        let minutes = took.as_secs_f64() / 60.0;
        let over = if minutes > budget { "   OVER BUDGET" } else { "" };
        println!("{name:<16} {minutes:>5.1} of {budget:>4.0} minutes{over}");
    }
    tally.close()
}

fn timed(
    times: &mut Vec<(&'static str, Duration, f64)>,
    name: &'static str,
    budget: f64,
    part: impl FnOnce(),
) {
    println!("\n== {name}");
    let start = Instant::now();
    part();
    times.push((name, start.elapsed(), budget));
}

/// The binary and all test programs, in the one profile that everything uses. Benchmarks are only
/// linted: to build them takes minutes, and no test runs them.
fn build() -> Result<(), String> {
    shell::show(&mut shell::cargo(&[
        "build",
        "--profile",
        shell::profile(),
        "--workspace",
        "--lib",
        "--bins",
        "--tests",
        "--examples",
        "--locked",
    ]))
}

/// Unit, property and end-to-end tests, and the examples in the docs. The simulator has its own turn.
fn cargo_tests(tally: &mut Tally) {
    let args = [
        "test",
        "--profile",
        shell::profile(),
        "--workspace",
        "--exclude",
        "anabranch-sim",
        "--locked",
    ];
    let mut command = shell::cargo(&args);
    command.arg("--no-fail-fast").stderr(Stdio::inherit());
    lend(
        &mut command,
        "ANABRANCH_DYNAMODB_LOCAL",
        "DynamoDB Local",
        parts::dynamodb_local(),
        tally,
    );
    lend(&mut command, "ANABRANCH_KCL", "Java's KCL", parts::kcl(), tally);
    lend(
        &mut command,
        "ANABRANCH_AGGREGATES_PYTHON",
        "aws_kinesis_agg and aiokpl",
        parts::aggregates_python(),
        tally,
    );
    lend(&mut command, "ANABRANCH_POSTGRES_BIN", "PostgreSQL", parts::postgres(), tally);
    let mock = parts::kinesis_mock().map(|(mock, node)| {
        command.env("ANABRANCH_NODE", node);
        mock
    });
    lend(&mut command, "ANABRANCH_KINESIS_MOCK", "kinesis-mock", mock, tally);
    println!("$ cargo {} --no-fail-fast", args.join(" "));
    tally.tests("cargo test", &mut command);
}

/// Tells the tests where a third-party part is. Those that need it say so when it is not there.
fn lend(
    command: &mut Command,
    variable: &str,
    name: &str,
    part: Result<PathBuf, parts::Missing>,
    tally: &mut Tally,
) {
    match part {
        Ok(path) => {
            command.env(variable, path);
        }
        Err(parts::Missing(way_out)) => tally.skip(name, &way_out),
    }
}
