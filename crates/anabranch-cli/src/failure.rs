//! Why a command ended early: one line for a person, and an exit code for a script.

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

/// A failed command. Its text is one line: what happened, to what, and the way out.
#[derive(Debug)]
pub(crate) struct CommandFailure {
    text: String,
    code: u8,
}

impl CommandFailure {
    /// The work was done and its result is bad: a guarantee did not hold, a record was refused.
    pub(crate) fn result(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), code: 1 }
    }

    /// The command could not start: bad options, a port that is taken, no credentials, a stream
    /// that is not there.
    pub(crate) fn usage(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), code: 2 }
    }

    /// The same, after a part of the work was done: says too what that left behind.
    pub(crate) fn after(self, left: impl fmt::Display) -> Self {
        Self::result(format!("{}; {left}", self.text))
    }

    /// The line that a person reads.
    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Prints the line to standard error and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        // Who reads standard error may be gone, and the exit code still tells.
        let _ = writeln!(std::io::stderr(), "error: {}", self.text);
        ExitCode::from(self.code)
    }
}
