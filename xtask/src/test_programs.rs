//! Test programs: built by cargo and run concurrently, each with its output kept together.
//!
//! Many of them mostly wait, for leases to expire or servers to start. Cargo runs them one after
//! the other, which leaves the machine idle.

use crate::shell;
use crate::tally::CheckTally;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Number of programs run at once. It exceeds the cores, because most programs wait.
const AT_ONCE: usize = 3;

/// The longest programs, which start first so that none of them runs alone at the end.
const LONGEST: [&str; 6] =
    ["dynamodb_store", "end_to_end", "command", "relay", "sql_stores", "consumer"];

/// A command whose output is that of tests.
pub(crate) struct TestJob {
    /// Title for the output.
    title: String,
    command: Command,
}

impl TestJob {
    pub(crate) fn new(title: &str, mut command: Command) -> Self {
        command.stdin(Stdio::null());
        Self { title: title.to_owned(), command }
    }

    /// Sets an environment variable.
    pub(crate) fn set_env(&mut self, variable: &str, value: &Path) {
        self.command.env(variable, value);
    }
}

/// Builds the test programs that `which` selects, and returns them in the order to run.
pub(crate) fn build(which: &[&str]) -> Result<Vec<TestJob>, String> {
    let args = ["test", "--no-run", "--message-format=json", "--profile", shell::profile()];
    let mut cargo = shell::cargo(&args);
    cargo.args(["--workspace", "--locked"]).args(which).stderr(Stdio::inherit());
    let out = cargo.output().map_err(|error| format!("cargo did not start: {error}"))?;
    if !out.status.success() {
        return Err(format!("the test programs were not built: {}", out.status));
    }
    let messages = String::from_utf8_lossy(&out.stdout);
    let mut programs: Vec<TestProgram> =
        messages.lines().filter_map(TestProgram::parse_message).collect();
    programs.sort_by_key(|it| {
        let place = LONGEST.iter().position(|name| *name == it.name);
        (place.unwrap_or(LONGEST.len()), it.source.clone())
    });
    Ok(programs.into_iter().map(TestProgram::job).collect())
}

/// A test program, as reported by cargo.
#[derive(PartialEq, Eq, Debug)]
struct TestProgram {
    /// Name of the target.
    name: String,
    /// Its root source file.
    source: String,
    /// Path of the executable.
    path: String,
    /// Folder of its package, where cargo would run it.
    folder: PathBuf,
}

impl TestProgram {
    /// Parses a message of cargo. Returns `None` if it does not report a test program.
    fn parse_message(message: &str) -> Option<Self> {
        let (_, profile) = message.split_once("\"profile\":{")?;
        let (profile, _) = profile.split_once('}')?;
        let (_, target) = message.split_once("\"target\":{")?;
        if !profile.contains("\"test\":true") {
            return None;
        }
        Some(Self {
            name: text(target, "name")?.to_owned(),
            source: text(target, "src_path")?.to_owned(),
            path: text(message, "executable")?.to_owned(),
            folder: Path::new(text(message, "manifest_path")?).parent()?.to_path_buf(),
        })
    }

    fn job(self) -> TestJob {
        let source = Path::new(&self.source);
        let title = source.strip_prefix(shell::root()).unwrap_or(source).display().to_string();
        let mut command = Command::new(self.path);
        command.current_dir(self.folder);
        TestJob::new(&title, command)
    }
}

/// Returns the string value of a key in a line of JSON. Paths here contain no quotes or
/// backslashes.
fn text<'a>(json: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = json.split_once(&format!("\"{key}\":\""))?;
    rest.split('"').next()
}

/// Runs the jobs, several at once. Prints the output of each when it ends, and counts its results.
pub(crate) fn run(jobs: Vec<TestJob>, tally: &mut CheckTally) {
    let queue = Mutex::new(VecDeque::from(jobs));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let (ended, results) = mpsc::sync_channel(AT_ONCE);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            let (ended, next) = (ended.clone(), &next);
            scope.spawn(move || {
                while let Some(mut job) = next() {
                    let start = Instant::now();
                    let out = job.command.output();
                    // The receiver lives until all jobs have ended.
                    let _ = ended.send((job.title, start.elapsed(), out));
                }
            });
        }
        drop(ended);
        for (title, took, out) in results {
            count(&title, took, out, tally);
        }
    });
}

fn count(title: &str, took: Duration, out: std::io::Result<Output>, tally: &mut CheckTally) {
    println!("\n-- {title} ({:.1} s)", took.as_secs_f64());
    match out {
        Ok(out) => {
            eprint!("{}", String::from_utf8_lossy(&out.stderr));
            tally.printed(title, &String::from_utf8_lossy(&out.stdout), out.status);
        }
        Err(error) => tally.fail(title, &error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = r#"{"reason":"compiler-artifact","package_id":"x","manifest_path":"/r/crates/a/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"leases","src_path":"/r/crates/a/tests/leases/main.rs","test":true},"profile":{"opt_level":"0","test":true},"features":[],"filenames":["/r/t/leases-1"],"executable":"/r/t/leases-1","fresh":true}"#;

    #[test]
    fn a_message_of_cargo_tells_of_a_test_program() {
        let program = TestProgram::parse_message(MESSAGE).expect("a program");
        let expected = TestProgram {
            name: "leases".to_owned(),
            source: "/r/crates/a/tests/leases/main.rs".to_owned(),
            path: "/r/t/leases-1".to_owned(),
            folder: "/r/crates/a".into(),
        };
        assert_eq!(program, expected);
        // Targets that are no tests, or have no executable, are not run.
        let no_test = MESSAGE.replace(r#""0","test":true"#, r#""0","test":false"#);
        let no_program = MESSAGE.replace(r#""executable":"/r/t/leases-1""#, r#""executable":null"#);
        for message in [no_test.as_str(), no_program.as_str(), "not JSON"] {
            assert_eq!(TestProgram::parse_message(message), None, "{message}");
        }
    }

    #[test]
    fn jobs_are_counted_whether_they_say_so_or_die() {
        let job = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            TestJob::new(script, command)
        };
        let result = "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'";
        let mut tally = CheckTally::default();
        run(vec![job(result), job("kill -9 $$"), job(result), job("exit 0")], &mut tally);
        assert_eq!((tally.passes(), tally.failures()), (6, 1));
    }
}
