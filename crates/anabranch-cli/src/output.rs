//! Standard output for text: a closed pipe is ignored, but a full disk is reported.

use crate::failure::CommandFailure;
use std::fmt;
use std::io::{self, IsTerminal as _, Write};
use std::sync::OnceLock;

/// First error of writing standard output. It is kept for the end, so that printing code need not
/// handle it.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Prints a line to standard output. A closed pipe is ignored.
macro_rules! print_line {
    ($($text:tt)*) => { crate::output::say_line(format_args!($($text)*)) };
}

/// Prints a notice line to standard error.
macro_rules! print_note {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

pub(crate) use {print_line, print_note};

/// Prints a line.
pub(crate) fn say_line(line: fmt::Arguments<'_>) {
    keep(writeln!(io::stdout(), "{line}"));
}

/// Prints a whole text.
pub(crate) fn show(text: &str) {
    keep(io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()));
}

fn keep(written: io::Result<()>) {
    if let Err(error) = written {
        let _ = FAILED.set(error);
    }
}

/// Returns true if the reader of the output has closed it.
pub(crate) fn is_unread() -> bool {
    FAILED.get().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Combines the result of a command with that of its output. A pipe closed by, for example, `|
/// head` is not a failure.
pub(crate) fn judge(ended: Result<(), CommandFailure>) -> Result<(), CommandFailure> {
    match FAILED.get() {
        Some(error) if ended.is_ok() && !is_unread() => Err(unwritten(error)),
        _ => ended,
    }
}

/// Returns the failure for unwritable standard output.
pub(crate) fn unwritten(error: &io::Error) -> CommandFailure {
    CommandFailure::result(format!("standard output can't be written: {error}"))
}

/// Returns true if standard output is a terminal that can be redrawn. A dumb terminal can't move
/// its cursor.
pub(crate) fn is_screen() -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    io::stdout().is_terminal() && !dumb
}

/// Returns the width of the terminal, or `None` for a file or a pipe.
pub(crate) fn width() -> Option<usize> {
    let (width, _) = terminal_size::terminal_size_of(io::stdout())?;
    Some(usize::from(width.0))
}
