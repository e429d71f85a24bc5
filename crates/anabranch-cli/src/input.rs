//! Lines from standard input or from files, read by a thread of their own.

use crate::failure::Failure;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// Lines that may wait to be taken.
const WAITING: usize = 1_024;
/// The longest line: a record of 10 MiB as base64 inside JSON, and some more.
const LONGEST: usize = 32 << 20;

/// Bytes that may wait to be taken. A longer line waits alone.
const WAITING_BYTES: usize = 16 << 20;

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
    pub(crate) fn lines(self) -> Lines {
        let (send, lines) = mpsc::channel(WAITING);
        let room = Arc::new(Room::default());
        let to = Reader { to: send, room: Arc::clone(&room) };
        std::thread::spawn(move || {
            for (source, reader) in self.sources {
                if !to.read(&source, reader) {
                    return;
                }
            }
        });
        Lines { lines, room }
    }
}

/// The lines that were read.
pub(crate) struct Lines {
    lines: mpsc::Receiver<Result<Line, Failure>>,
    room: Arc<Room>,
}

impl Lines {
    /// The next line; `None` behind the last.
    pub(crate) async fn recv(&mut self) -> Option<Result<Line, Failure>> {
        let line = self.lines.recv().await?;
        if let Ok(line) = &line {
            self.room.leave(line.text.len());
        }
        Some(line)
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // Whoever waits for room finds the channel closed.
        self.lines.close();
        self.room.leave(usize::MAX);
    }
}

/// How many bytes wait.
#[derive(Default)]
struct Room {
    waiting: Mutex<usize>,
    left: Condvar,
}

impl Room {
    /// Waits until so many bytes fit, or until nothing waits.
    fn enter(&self, bytes: usize) {
        let full = |waiting: &mut usize| *waiting > 0 && *waiting + bytes > WAITING_BYTES;
        let waiting = self.left.wait_while(self.lock(), full);
        *waiting.unwrap_or_else(PoisonError::into_inner) += bytes;
    }

    fn leave(&self, bytes: usize) {
        let mut waiting = self.lock();
        *waiting = waiting.saturating_sub(bytes);
        self.left.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        // A number is never half written.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that reads.
struct Reader {
    to: mpsc::Sender<Result<Line, Failure>>,
    room: Arc<Room>,
}

impl Reader {
    /// Reads one source. `false` when there is no point in reading on.
    fn read(&self, source: &str, mut reader: impl BufRead) -> bool {
        for number in 1.. {
            let mut text = Vec::new();
            let wrong = |why: String| {
                drop(self.to.blocking_send(Err(Failure::result(format!(
                    "{source}, line {number}: {why}"
                )))));
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
            self.room.enter(line.text.len());
            if self.to.blocking_send(Ok(line)).is_err() {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_come_with_their_numbers_and_the_last_needs_no_break() {
        let (to, mut lines) = mpsc::channel(10);
        let reader = Reader { to, room: Arc::default() };
        let read = tokio::task::spawn_blocking(move || reader.read("f", &b"a\r\n\nb"[..]));
        assert!(read.await.unwrap());
        for (number, text) in [(1, "a"), (2, ""), (3, "b")] {
            let line = lines.recv().await.unwrap().unwrap();
            assert_eq!((line.number, line.text.as_slice()), (number, text.as_bytes()));
        }
        assert!(lines.recv().await.is_none());
    }

    #[tokio::test]
    async fn long_lines_are_not_read_far_ahead() {
        let line = vec![b'x'; WAITING_BYTES / 4];
        let text = [line.as_slice(); 40].join(&b'\n');
        let sources = vec![("f".to_owned(), Box::new(io::Cursor::new(text)) as Box<_>)];
        let mut lines = Input { sources }.lines();
        for number in 1..=40 {
            // Whoever takes slowly finds as much as may wait, or what is left, and never more.
            let left = (41 - number) * (WAITING_BYTES / 4);
            while *lines.room.lock() < WAITING_BYTES.min(left) {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            assert!(*lines.room.lock() <= WAITING_BYTES);
            let line = lines.recv().await.unwrap().unwrap();
            assert_eq!((line.number, line.text.len()), (number as u64, WAITING_BYTES / 4));
        }
        assert!(lines.recv().await.is_none());
    }
}
