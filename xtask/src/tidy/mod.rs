//! `cargo xtask tidy`: the house rules that a machine can check.

mod bans;
mod decisions;
mod dependencies;
mod documents;
mod features;
mod file_map;
mod named_tests;
mod prose;
mod purity;
mod size;
mod sources;
mod type_names;

use crate::shell::{cargo, output, profile};
use crate::tally::CheckTally;
use std::io::Write as _;
use std::process::ExitCode;

/// Runs every rule and counts each as one check.
pub(crate) fn run() -> CheckTally {
    let mut tally = CheckTally::default();
    let sources = sources::all();
    tally.check("tidy: rustfmt", output(&mut cargo(&["fmt", "--all", "--check"])).map(drop));
    tally.check("tidy: clippy", clippy());
    tally.check("tidy: each feature of the library compiles alone", features::check());
    tally.check(
        "tidy: every source file says in its first line what it is",
        file_map::check(&sources),
    );
    tally.check("tidy: files are small and well named", size::check(&sources));
    tally.check("tidy: type names are defined once", type_names::check(&sources));
    tally.check("tidy: the model is pure", purity::check());
    tally.check("tidy: dependencies keep the rules of deny.toml", dependencies::check());
    tally.check("tidy: no banned call", bans::check(&sources));
    tally.check("tidy: every decision has its tests", decisions::check(&sources));
    tally.check("tidy: tests that a document names are there", named_tests::check(&sources));
    let named_code = documents::check_named_code(&sources);
    tally.check("tidy: what ARCHITECTURE.md and CONTRIBUTING.md name is there", named_code);
    tally.check("tidy: ARCHITECTURE.md and README.md are short", documents::check_lengths());
    tally.check("tidy: comments name their subject", prose::check_comments(&sources));
    let documents = sources::documents();
    tally.check("tidy: documents name their subject", prose::check_documents(&documents));
    tally
}

/// `cargo xtask map`: prints each source file with the first sentence of its doc comment.
pub(crate) fn print_map() -> ExitCode {
    // A reader that closes the pipe early is not a failure.
    let _ = std::io::stdout().write_all(file_map::render(&sources::all()).as_bytes());
    ExitCode::SUCCESS
}

fn clippy() -> Result<(), String> {
    let all = ["clippy", "--profile", profile(), "--workspace", "--all-targets", "--locked"];
    output(cargo(&all).args(["--", "-D", "warnings"])).map(drop)
}
