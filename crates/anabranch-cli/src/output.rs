//! Standard output for texts: a reader that went away is no reason to fall over.

use std::io::{self, Write};

/// Prints a line; a reader that went away is no reason to stop.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// Prints a line for a person, beside the output.
macro_rules! note {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

pub(crate) use {note, say};

/// Prints a whole text.
pub(crate) fn show(text: &str) {
    // `| head` closes the pipe, which is its right.
    let _ = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
}
