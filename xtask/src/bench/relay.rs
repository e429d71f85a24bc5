//! `cargo xtask bench relay`: rows per second of the outbox relay, compared with a plain loop.

use super::set_env_if_present;
use crate::shell::{cargo, profile, show};
use crate::third_party;
use std::process::ExitCode;

/// Runs the benchmark.
pub(crate) fn run() -> ExitCode {
    let rows = ["bench", "--workspace", "--locked", "--profile", profile(), "--bench", "rows"];
    let mut rows = cargo(&rows);
    set_env_if_present(&mut rows, "ANABRANCH_POSTGRES_BIN", third_party::postgres());
    match show(&mut rows) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}
