//! `cargo xtask bench leases`: what planning costs, what an idle fleet asks of its store beside KCL,
//! a fleet that starts on an empty store, and planned hand-overs, on every store.

use super::set_env_if_present;
use crate::shell::{cargo, profile, show};
use crate::third_party;
use std::process::{Command, ExitCode};

/// The part that the model's own benchmark measures.
const PLAN: &str = "plan";

/// Runs the parts that are named, or all of them.
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

/// In the profile and with the features of the tests, so that nothing is built twice.
fn benchmark(name: &str) -> Command {
    cargo(&["bench", "--workspace", "--locked", "--profile", profile(), "--bench", name])
}
