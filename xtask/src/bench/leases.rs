//! `cargo xtask bench leases`: planning cost, store calls of an idle fleet compared with KCL, a
//! fleet start on an empty store, and planned handovers, on every store.

use super::set_env_if_present;
use crate::shell::{cargo, profile, show};
use crate::third_party;
use std::process::{Command, ExitCode};

/// The part measured by the model crate's own benchmark.
const PLAN: &str = "plan";

/// Runs the named parts, or all of them.
pub(crate) fn run(parts: &[&str]) -> ExitCode {
    match bench(parts) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn bench(parts: &[&str]) -> Result<(), String> {
    if parts.is_empty() || parts.contains(&PLAN) {
        show(&mut benchmark("plan"))?;
    }
    let others: Vec<&str> = parts.iter().copied().filter(|part| *part != PLAN).collect();
    if !parts.is_empty() && others.is_empty() {
        return Ok(());
    }
    let mut leases = benchmark("leases");
    leases.arg("--").args(others);
    set_env_if_present(&mut leases, "ANABRANCH_DYNAMODB_LOCAL", third_party::dynamodb_local());
    set_env_if_present(&mut leases, "ANABRANCH_POSTGRES_BIN", third_party::postgres());
    show(&mut leases)
}

/// Returns a benchmark command with the profile and features of the tests, so that nothing is built
/// twice.
fn benchmark(name: &str) -> Command {
    cargo(&["bench", "--workspace", "--locked", "--profile", profile(), "--bench", name])
}
