//! Standard output for texts: a reader that went away is no reason to fall over, a full disk is one
//! to say so.

use crate::failure::CommandFailure;
use std::fmt;
use std::io::{self, IsTerminal as _, Write};
use std::sync::OnceLock;

/// Why standard output could not be written, the first time. Kept for the end, because a text has
/// many lines and its makers have other things to think of.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Prints a line; a reader that went away is no reason to stop.
macro_rules! print_line {
    ($($text:tt)*) => { crate::output::say_line(format_args!($($text)*)) };
}

/// Prints a line for a person, beside the output.
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

/// Whether whoever read the output has closed it.
pub(crate) fn is_unread() -> bool {
    FAILED.get().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// How a command ended whose texts went to standard output. `| head` closes the pipe, which is its
/// right.
pub(crate) fn judge(ended: Result<(), CommandFailure>) -> Result<(), CommandFailure> {
    match FAILED.get() {
        Some(error) if ended.is_ok() && !is_unread() => Err(unwritten(error)),
        _ => ended,
    }
}

/// Standard output can't be written.
pub(crate) fn unwritten(error: &io::Error) -> CommandFailure {
    CommandFailure::result(format!("standard output can't be written: {error}"))
}

/// Whether standard output is a terminal on which lines can be drawn anew. A dumb one can't move its
/// cursor.
pub(crate) fn is_screen() -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    io::stdout().is_terminal() && !dumb
}

/// The width of the terminal that standard output is. None where it is a file or a pipe.
pub(crate) fn width() -> Option<usize> {
    let (width, _) = terminal_size::terminal_size_of(io::stdout())?;
    Some(usize::from(width.0))
}
