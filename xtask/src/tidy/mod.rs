//! `cargo xtask tidy`: the rules of the house that a machine can check.

mod bans;
mod decisions;
mod file_map;
mod named_tests;
mod purity;
mod size;
mod sources;

use crate::shell::{cargo, output, profile};
use crate::tally::CheckTally;

/// Runs every rule and counts each as one check.
pub(crate) fn run() -> CheckTally {
    let mut tally = CheckTally::default();
    let sources = sources::all();
    tally.check("tidy: rustfmt", output(&mut cargo(&["fmt", "--all", "--check"])).map(drop));
    tally.check("tidy: clippy", clippy());
    tally.check("tidy: the file map is true", file_map::check(&sources));
    tally.check("tidy: files are small and well named", size::check(&sources));
    tally.check("tidy: the model is pure", purity::check());
    tally.check("tidy: no banned call", bans::check(&sources));
    tally.check("tidy: every decision has its tests", decisions::check(&sources));
    tally.check("tidy: tests that a document names are there", named_tests::check(&sources));
    tally
}

/// `cargo xtask map`: writes the file map of ARCHITECTURE.md anew.
pub(crate) fn write_map() -> CheckTally {
    let mut tally = CheckTally::default();
    tally.check("the file map is written", file_map::write(&sources::all()));
    tally
}

fn clippy() -> Result<(), String> {
    let all = ["clippy", "--profile", profile(), "--workspace", "--all-targets", "--locked"];
    output(cargo(&all).args(["--", "-D", "warnings"])).map(drop)
}
