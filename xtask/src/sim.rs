//! `cargo xtask sim`: builds the simulator and runs it with the given arguments.

use crate::shell;
use crate::tally::CheckTally;
use std::os::unix::process::CommandExt;
use std::process::{ExitCode, Stdio};

/// Test programs of the simulator, which have a separate time budget.
const TESTS: [&str; 6] =
    ["sim_world", "sim_checkers", "sim_leases", "sim_flaws", "sim_consumer", "sim_producer"];

/// Runs the simulator with these arguments.
pub(crate) fn run(args: &[&str]) -> ExitCode {
    let (ours, args): (Vec<&str>, Vec<&str>) = args.iter().partition(|arg| **arg == "--release");
    if !ours.is_empty() {
        shell::use_release();
    }
    // With the whole workspace's features, so that nothing is built twice.
    let build = [
        "build",
        "--profile",
        shell::profile(),
        "--workspace",
        "--bin",
        "anabranch-sim",
        "--locked",
    ];
    if let Err(why) = shell::show(&mut shell::cargo(&build)) {
        eprintln!("error: {why}");
        return ExitCode::FAILURE;
    }
    // Replaces this process, so that Ctrl-C and the exit code are the simulator's own.
    let error = shell::program(shell::built("anabranch-sim"), &args).exec();
    eprintln!("error: the simulator did not start: {error}");
    ExitCode::FAILURE
}

/// Runs the simulator's tests: some hundred seeds, and every flaw.
pub(crate) fn tests(tally: &mut CheckTally) {
    let mut command =
        shell::cargo(&["test", "--profile", shell::profile(), "--workspace", "--locked"]);
    for test in TESTS {
        command.args(["--test", test]);
    }
    // Shows the tables of generated cases, and of flaws with the seeds that they took.
    command.args(["--no-fail-fast", "--", "--show-output"]).stderr(Stdio::inherit());
    println!(
        "$ cargo test --profile {} --workspace --test {}",
        shell::profile(),
        TESTS.join(" --test ")
    );
    tally.tests("the simulator's tests", &mut command);
}
