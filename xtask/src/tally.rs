//! Tally of passed, failed and skipped checks.

use std::process::{Command, ExitCode, ExitStatus};

/// Counts of checks, with the text of each that did not pass.
#[derive(Default)]
pub(crate) struct CheckTally {
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<String>,
}

impl CheckTally {
    /// Counts a check by its result, and prints a failure at once.
    pub(crate) fn check(&mut self, name: &str, result: Result<(), String>) {
        match result {
            Ok(()) => self.pass(name),
            Err(why) => self.fail(name, &why),
        }
    }

    pub(crate) fn pass(&mut self, name: &str) {
        println!("ok      {name}");
        self.passed += 1;
    }

    pub(crate) fn fail(&mut self, name: &str, why: &str) {
        println!("FAILED  {name}\n        {}", why.replace('\n', "\n        "));
        self.failed.push(name.to_owned());
    }

    /// Counts a part that could not run, with the instructions to get what it lacks.
    pub(crate) fn skip(&mut self, name: &str, way_out: &str) {
        println!("skipped {name}: {way_out}");
        self.skipped.push(format!("{name}: {way_out}"));
    }

    /// Runs a `cargo test` command, shows its output and counts its results.
    pub(crate) fn tests(&mut self, name: &str, command: &mut Command) {
        match command.output() {
            Err(error) => self.fail(name, &error.to_string()),
            Ok(out) => self.printed(name, &String::from_utf8_lossy(&out.stdout), out.status),
        }
    }

    /// Shows the output of tests and counts their results.
    pub(crate) fn printed(&mut self, name: &str, text: &str, status: ExitStatus) {
        let before = self.failures();
        print!("{text}");
        self.cargo_test(text);
        // A test program that died without a result line must be counted too.
        if !status.success() && self.failures() == before {
            self.fail(name, &format!("ended with {status}"));
        }
    }

    /// Counts the results of a `cargo test` run from its "test result:" lines.
    pub(crate) fn cargo_test(&mut self, output: &str) {
        for line in output.lines() {
            if let Some(counts) = line.strip_prefix("test result: ") {
                self.passed += number_before(counts, " passed");
            } else if let Some(name) = failed_test(line) {
                self.failed.push(name.to_owned());
            }
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
    }

    pub(crate) fn failures(&self) -> usize {
        self.failed.len()
    }

    #[cfg(test)]
    pub(crate) fn passes(&self) -> usize {
        self.passed
    }

    #[cfg(test)]
    pub(crate) fn skips(&self) -> usize {
        self.skipped.len()
    }

    /// Prints the closing lines and returns the exit code. In CI, where every part must be present,
    /// a skip counts as a failure.
    pub(crate) fn close(self) -> ExitCode {
        for name in &self.failed {
            println!("failed:  {name}");
        }
        for what in &self.skipped {
            println!("skipped: {what}");
        }
        let (passed, failed, skipped) = (self.passed, self.failed.len(), self.skipped.len());
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        let in_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
        if failed > 0 || (in_ci && skipped > 0) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

/// Returns the name in a line such as `test lineage::tests::merge ... FAILED`.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Returns the number directly before `word`.
fn number_before(text: &str, word: &str) -> usize {
    let before = text.split(word).next().unwrap_or_default();
    before.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_results_are_counted() {
        let mut tally = CheckTally::default();
        tally.cargo_test(
            "running 3 tests\ntest a::b ... ok\ntest a::c ... FAILED\n\
             test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n\
             test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!((tally.passed, tally.failed), (42, vec!["a::c".to_owned()]));
    }
}
