//! `cargo xtask test`: runs all parts in order and prints the time of each with its budget.

use crate::server::{ServerProcess, free_port};
use crate::tally::CheckTally;
use crate::test_programs;
use crate::test_programs::TestJob;
use crate::{interop, shell, sim, third_party, tidy};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Time budgets in minutes on 2 cores with a cold cache. They are printed beside the actual time;
/// no test asserts them.
const BUILD_AND_LINT_MINUTES: f64 = 12.0;
const TESTS_MINUTES: f64 = 6.0;
const SIMULATOR_MINUTES: f64 = 6.0;
const REAL_PARTS_MINUTES: f64 = 10.0;

/// Runs everything.
pub(crate) fn run() -> ExitCode {
    let mut tally = CheckTally::default();
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

/// Builds the binary and all test programs in one profile. Benchmarks are only linted: building
/// them takes minutes, and no test runs them.
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

/// Runs unit, property and end-to-end tests, and the examples in the docs. The simulator's tests
/// run separately.
fn cargo_tests(tally: &mut CheckTally) {
    const OTHERS: [&str; 2] = ["--exclude", "anabranch-sim"];
    let mut lent = lent(tally);
    let tables = shared_dynamodb(&mut lent);
    let mut jobs = match test_programs::build(&OTHERS) {
        Ok(jobs) => jobs,
        Err(why) => return tally.fail("the test programs", &why),
    };
    let mut docs = shell::cargo(&["test", "--doc", "--profile", shell::profile(), "--workspace"]);
    docs.args(["--locked", "--no-fail-fast"]).args(OTHERS);
    // After the longest programs: the examples keep rustc busy, and can share the machine with
    // programs that mostly wait.
    jobs.insert(jobs.len().min(2), TestJob::new("examples in the docs", docs));
    for job in &mut jobs {
        for (variable, path) in &lent {
            job.set_env(variable, path);
        }
    }
    test_programs::run(jobs, tally);
    drop(tables);
}

/// Starts one DynamoDB Local for all tests, because it starts slowly and is slow at first. If it
/// does not start, each test starts its own and reports the reason.
fn shared_dynamodb(lent: &mut Vec<(&'static str, PathBuf)>) -> Option<ServerProcess> {
    let (_, folder) = lent.iter().find(|(variable, _)| *variable == "ANABRANCH_DYNAMODB_LOCAL")?;
    let port = free_port().ok()?;
    let mut java = shell::program("java", &["-Xmx512m", "-Djava.library.path=./DynamoDBLocal_lib"]);
    java.args(["-jar", "DynamoDBLocal.jar", "-inMemory", "-disableTelemetry", "-port"]);
    java.arg(port.to_string()).current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
    let server = ServerProcess::peer(&mut java, port).ok()?;
    lent.push(("ANABRANCH_DYNAMODB_LOCAL_PORT", port.to_string().into()));
    Some(server)
}

/// Returns the paths of third-party parts for the tests. Missing parts are counted as skipped.
fn lent(tally: &mut CheckTally) -> Vec<(&'static str, PathBuf)> {
    let mut lent = Vec::new();
    let mock = third_party::kinesis_mock().map(|(mock, node)| {
        lent.push(("ANABRANCH_NODE", node));
        mock
    });
    for (variable, name, part) in [
        ("ANABRANCH_DYNAMODB_LOCAL", "DynamoDB Local", third_party::dynamodb_local()),
        ("ANABRANCH_KCL", "Java's KCL", third_party::kcl()),
        (
            "ANABRANCH_AGGREGATES_PYTHON",
            "aws_kinesis_agg and aiokpl",
            third_party::aggregates_python(),
        ),
        ("ANABRANCH_POSTGRES_BIN", "PostgreSQL", third_party::postgres()),
        ("ANABRANCH_PGBOUNCER", "PgBouncer", third_party::pgbouncer()),
        ("ANABRANCH_KINESIS_MOCK", "kinesis-mock", mock),
    ] {
        match part {
            Ok(path) => lent.push((variable, path)),
            Err(third_party::MissingPart(way_out)) => tally.skip(name, &way_out),
        }
    }
    lent
}
