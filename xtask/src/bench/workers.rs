//! `cargo xtask bench consumer --times` and `--idle`: workers as real processes against the local
//! stream.

use crate::shell::{cargo, profile, show};
use std::process::ExitCode;

/// The parts of this benchmark.
const PARTS: [&str; 2] = ["--times", "--idle"];

/// Returns true if one of its parts is named.
pub(crate) fn has(parts: &[&str]) -> bool {
    parts.iter().any(|part| PARTS.contains(part))
}

/// Runs the named parts.
pub(crate) fn run(parts: &[&str]) -> ExitCode {
    let mut bench =
        cargo(&["bench", "--workspace", "--locked", "--profile", profile(), "--bench", "workers"]);
    match show(bench.arg("--").args(parts)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}
