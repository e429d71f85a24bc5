//! `cargo xtask bench producer` and `bench consumer`: CPU per record compared with a bare SDK loop,
//! against a sink that answers canned replies.

use super::set_env_if_present;
use crate::shell::{cargo, profile, show};
use crate::third_party;
use std::process::{Command, ExitCode};

/// Measures the producer's cost, compared with aiokpl too, and its memory.
pub(crate) fn producer() -> ExitCode {
    run(&["producer", "memory"])
}

/// Measures the consumer's cost.
pub(crate) fn consumer() -> ExitCode {
    run(&["consumer"])
}

fn run(parts: &[&str]) -> ExitCode {
    for part in parts {
        if let Err(why) = show(&mut speed(part)) {
            eprintln!("error: {why}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Returns the benchmark command with the features of the tests, so that dependencies are not built
/// twice.
fn speed(part: &str) -> Command {
    let mut command = cargo(&["bench", "--workspace", "--locked", "--profile", profile()]);
    command.args(["--bench", "speed", "--", part]);
    if part == "producer" {
        set_env_if_present(
            &mut command,
            "ANABRANCH_AGGREGATES_PYTHON",
            third_party::aggregates_python(),
        );
    }
    command
}
