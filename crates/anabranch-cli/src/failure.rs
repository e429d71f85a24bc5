//! Command failure: a one-line message and an exit code.

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

/// A failed command. Its message is one line: cause, subject and remedy.
#[derive(Debug)]
pub(crate) struct CommandFailure {
    text: String,
    code: u8,
}

impl CommandFailure {
    /// Creates a failure of completed work with a bad result, such as a broken guarantee or a
    /// refused record. Exit code 1.
    pub(crate) fn result(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), code: 1 }
    }

    /// Creates a failure of a command that could not start, such as bad options, a port in use,
    /// missing credentials or a missing stream. Exit code 2.
    pub(crate) fn usage(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), code: 2 }
    }

    /// Converts the failure to one after partial work, and adds a description of the resulting
    /// state.
    pub(crate) fn after(self, left: impl fmt::Display) -> Self {
        Self::result(format!("{}; {left}", self.text))
    }

    /// Returns the message.
    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Prints the message to standard error and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        // The reader of standard error may be gone. The exit code is still meaningful.
        let _ = writeln!(std::io::stderr(), "error: {}", self.text);
        ExitCode::from(self.code)
    }
}
