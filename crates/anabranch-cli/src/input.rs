//! Lines from standard input or from files, read by a thread of their own.

use crate::failure::Failure;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Lines that may wait to be taken.
const WAITING: usize = 1_024;
/// The longest line: a record of 10 MiB as base64 inside JSON, and some more.
const LONGEST: usize = 32 << 20;

/// A line, and where it stood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The file, or standard input.
    pub(crate) source: String,
    /// Its number, from 1.
    pub(crate) number: u64,
    /// Its bytes, without the line break.
    pub(crate) text: Vec<u8>,
}

/// Where lines come from, checked before anything else happens.
pub(crate) struct Input {
    sources: Vec<(String, Box<dyn BufRead + Send>)>,
}

impl Input {
    /// Opens the files, or standard input when there are none. `-` is standard input too.
    pub(crate) fn open(files: &[PathBuf]) -> Result<Self, Failure> {
        let stdin =
            || ("standard input".to_owned(), Box::new(BufReader::new(io::stdin())) as Box<_>);
        if files.is_empty() {
            return Ok(Self { sources: vec![stdin()] });
        }
        let mut sources: Vec<(String, Box<dyn BufRead + Send>)> = Vec::new();
        for path in files {
            if path == Path::new("-") {
                sources.push(stdin());
                continue;
            }
            let name = path.display().to_string();
            let open = || {
                let file = File::open(path)?;
                if file.metadata()?.is_dir() {
                    return Err(io::Error::other("it is a folder"));
                }
                Ok(file)
            };
            let file =
                open().map_err(|error| Failure::usage(format!("{name} can't be read: {error}")))?;
            sources.push((name, Box::new(BufReader::new(file))));
        }
        Ok(Self { sources })
    }

    /// The lines, one after another. The channel ends with the last one, or with what went wrong.
    pub(crate) fn lines(self) -> mpsc::Receiver<Result<Line, Failure>> {
        let (send, lines) = mpsc::channel(WAITING);
        std::thread::spawn(move || {
            for (source, reader) in self.sources {
                if !read(&source, reader, &send) {
                    return;
                }
            }
        });
        lines
    }
}

/// Reads one source. `false` when there is no point in reading on.
fn read(source: &str, mut reader: impl BufRead, to: &mpsc::Sender<Result<Line, Failure>>) -> bool {
    for number in 1.. {
        let mut text = Vec::new();
        let wrong = |why: String| {
            drop(to.blocking_send(Err(Failure::result(format!("{source}, line {number}: {why}")))));
            false
        };
        match io::Read::take(&mut reader, LONGEST as u64).read_until(b'\n', &mut text) {
            Ok(0) => return true,
            Ok(LONGEST) => return wrong(format!("it has more than {LONGEST} bytes")),
            Ok(_) => {}
            Err(error) => return wrong(format!("it can't be read: {error}")),
        }
        if text.last() == Some(&b'\n') {
            text.pop();
            if text.last() == Some(&b'\r') {
                text.pop();
            }
        }
        let line = Line { source: source.to_owned(), number, text };
        if to.blocking_send(Ok(line)).is_err() {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_come_with_their_numbers_and_the_last_needs_no_break() {
        let (send, mut lines) = mpsc::channel(10);
        let read = tokio::task::spawn_blocking(move || read("f", &b"a\r\n\nb"[..], &send));
        assert!(read.await.unwrap());
        for (number, text) in [(1, "a"), (2, ""), (3, "b")] {
            let line = lines.recv().await.unwrap().unwrap();
            assert_eq!((line.number, line.text.as_slice()), (number, text.as_bytes()));
        }
        assert!(lines.recv().await.is_none());
    }
}
