//! Input lines from standard input or files, read by a separate thread.
//!
//! Lines are handed over in groups of those already buffered. Waking the receiver for each line
//! would cost more than all other processing.

use crate::failure::CommandFailure;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// Capacity of the channel, in groups.
const WAITING: usize = 16;
/// Maximum lines per group.
const HANDFUL: usize = 1_024;
/// Size of one read, in bytes.
const READ_BYTES: usize = 64 << 10;
/// Longest line: a 10 MiB record as base64 inside JSON, with some reserve.
const LONGEST: usize = 32 << 20;

/// Maximum bytes queued. A longer line is queued alone.
const WAITING_BYTES: usize = 16 << 20;

/// A line with its origin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InputLine {
    /// File name, or standard input.
    pub(crate) source: Arc<str>,
    /// Line number, starting at 1.
    pub(crate) number: u64,
    /// Bytes of the line, without the line break.
    pub(crate) text: Vec<u8>,
}

/// Input files, opened before any other work starts.
pub(crate) struct Input {
    sources: Vec<(String, Box<dyn Read + Send>)>,
}

impl Input {
    /// Opens the files, or standard input if there are none. `-` also means standard input.
    pub(crate) fn open(files: &[PathBuf]) -> Result<Self, CommandFailure> {
        let stdin = || ("standard input".to_owned(), Box::new(io::stdin()) as Box<_>);
        if files.is_empty() {
            return Ok(Self { sources: vec![stdin()] });
        }
        let mut sources: Vec<(String, Box<dyn Read + Send>)> = Vec::new();
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
            let file = open()
                .map_err(|error| CommandFailure::usage(format!("{name} can't be read: {error}")))?;
            sources.push((name, Box::new(file)));
        }
        Ok(Self { sources })
    }

    /// Returns the lines in order. The channel ends after the last line or an error.
    pub(crate) fn lines(self) -> Lines {
        let (send, lines) = mpsc::channel(WAITING);
        let room = Arc::new(LineBufferLimit::default());
        let to = ReaderThread { to: send, room: Arc::clone(&room) };
        std::thread::spawn(move || {
            for (source, reader) in self.sources {
                if !to.read(&source.into(), reader) {
                    return;
                }
            }
        });
        Lines { handfuls: lines, at_hand: VecDeque::new(), room }
    }
}

/// Lines that were read together.
#[derive(Default)]
struct LineGroup {
    lines: VecDeque<InputLine>,
    /// Size of the lines.
    bytes: usize,
}

/// Receiver of the lines.
pub(crate) struct Lines {
    handfuls: mpsc::Receiver<Result<LineGroup, CommandFailure>>,
    /// Lines of the current group that were not taken yet.
    at_hand: VecDeque<InputLine>,
    room: Arc<LineBufferLimit>,
}

impl Lines {
    /// Returns the next line if it is already buffered.
    pub(crate) fn try_recv(&mut self) -> Option<InputLine> {
        self.at_hand.pop_front()
    }

    /// Returns the next line, or `None` after the last.
    pub(crate) async fn recv(&mut self) -> Option<Result<InputLine, CommandFailure>> {
        loop {
            if let Some(line) = self.try_recv() {
                return Some(Ok(line));
            }
            match self.handfuls.recv().await? {
                Ok(handful) => {
                    self.room.leave(handful.bytes);
                    self.at_hand = handful.lines;
                }
                Err(failure) => return Some(Err(failure)),
            }
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // A reader that waits for free space finds the channel closed.
        self.handfuls.close();
        self.room.leave(usize::MAX);
    }
}

/// Limit on queued bytes.
#[derive(Default)]
struct LineBufferLimit {
    waiting: Mutex<usize>,
    left: Condvar,
}

impl LineBufferLimit {
    /// Waits until `bytes` fit or nothing is queued.
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

/// The reading thread.
struct ReaderThread {
    to: mpsc::Sender<Result<LineGroup, CommandFailure>>,
    room: Arc<LineBufferLimit>,
}

impl ReaderThread {
    /// Reads one source. Returns `false` if reading should stop.
    fn read(&self, source: &Arc<str>, reader: impl Read) -> bool {
        let mut reader = BufReader::with_capacity(READ_BYTES, reader);
        let mut handful = LineGroup::default();
        for number in 1.. {
            let mut text = Vec::new();
            let read = reader.by_ref().take(LONGEST as u64).read_until(b'\n', &mut text);
            let wrong = match read {
                Ok(0) => return true,
                Ok(LONGEST) => Some(format!("it has more than {LONGEST} bytes")),
                Ok(_) => None,
                Err(error) => Some(format!("it can't be read: {error}")),
            };
            if let Some(why) = wrong {
                let failure = CommandFailure::result(format!("{source}, line {number}: {why}"));
                let _ = self.to.blocking_send(Err(failure));
                return false;
            }
            if text.last() == Some(&b'\n') {
                text.pop();
                if text.last() == Some(&b'\r') {
                    text.pop();
                }
            }
            handful.bytes += text.len();
            handful.lines.push_back(InputLine { source: Arc::clone(source), number, text });
            // Hand over all complete lines before the next blocking read, so that none is held back
            // when it ends or fails.
            let goes_on = handful.lines.len() < HANDFUL && reader.buffer().contains(&b'\n');
            if !goes_on && !self.hand_over(std::mem::take(&mut handful)) {
                return false;
            }
        }
        true
    }

    /// Waits for free space and sends a group. Returns `false` if the receiver is gone.
    fn hand_over(&self, handful: LineGroup) -> bool {
        self.room.enter(handful.bytes);
        self.to.blocking_send(Ok(handful)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn lines_of(source: impl Read + Send + 'static) -> Lines {
        Input { sources: vec![("f".to_owned(), Box::new(source))] }.lines()
    }

    /// Yields one part per read, and counts the reads.
    struct Parts(Vec<&'static [u8]>, Arc<AtomicUsize>);

    impl Read for Parts {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.1.fetch_add(1, Ordering::SeqCst);
            if self.0.is_empty() {
                return Err(io::Error::other("torn"));
            }
            let part = self.0.remove(0);
            into[..part.len()].copy_from_slice(part);
            Ok(part.len())
        }
    }

    #[tokio::test]
    async fn a_line_is_handed_over_before_the_next_is_waited_for() {
        let (pipe, mut writer) = io::pipe().unwrap();
        let mut lines = lines_of(pipe);
        for text in ["one", "two"] {
            io::Write::write_all(&mut writer, format!("{text}\nhal").as_bytes()).unwrap();
            let line = lines.recv().await.unwrap().unwrap();
            assert!(line.text.ends_with(text.as_bytes()), "{line:?}");
            assert!(lines.try_recv().is_none(), "half a line is none");
        }
        drop(writer);
        assert_eq!(lines.recv().await.unwrap().unwrap().text, b"hal");
        assert!(lines.recv().await.is_none());
    }

    #[tokio::test]
    async fn lines_that_are_there_come_together_and_before_what_went_wrong() {
        let reads = Arc::default();
        let mut lines = lines_of(Parts(vec![b"a\nb\nc", b"d\ne\n"], Arc::clone(&reads)));
        let mut texts = vec![lines.recv().await.unwrap().unwrap().text];
        texts.extend(lines.try_recv().map(|line| line.text));
        assert_eq!(texts, [b"a", b"b"]);
        assert!(lines.try_recv().is_none());
        assert_eq!(lines.recv().await.unwrap().unwrap().text, b"cd");
        assert_eq!(lines.recv().await.unwrap().unwrap().text, b"e");
        let error = lines.recv().await.unwrap().unwrap_err();
        assert!(format!("{error:?}").contains("f, line 5: it can't be read: torn"), "{error:?}");
        assert!(lines.recv().await.is_none());
        assert_eq!(reads.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn lines_come_with_their_numbers_and_the_last_needs_no_break() {
        let mut lines = lines_of(&b"a\r\n\nb"[..]);
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
        let mut lines = lines_of(io::Cursor::new(text));
        for number in 1..=40 {
            // A slow receiver finds the queue filled up to the limit, or with the rest, and never
            // beyond.
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
