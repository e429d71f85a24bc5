//! Standard output for records, written by a separate thread so that a slow reader blocks nothing
//! else.

use crate::failure::CommandFailure;
use std::io::{self, Write};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Capacity of the thread's queue.
const WAITING: usize = 256;

/// Prints lines in the order given. Clones share one output.
#[derive(Clone, Debug)]
pub(crate) struct Printer {
    lines: mpsc::Sender<PrintJob>,
}

/// Lines to print, and the acknowledgement of their writing.
struct PrintJob {
    text: Vec<u8>,
    done: oneshot::Sender<()>,
}

/// Error of a handler whose output has no reader any more.
pub(crate) const STDOUT_CLOSED: &str = "standard output was closed";

/// Error after the output was closed: the pipe is closed, or the disk is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputClosed;

impl Printer {
    /// Starts the thread. It ends with the error for which nothing more could be written.
    pub(crate) fn start() -> (Self, JoinHandle<io::Result<()>>) {
        let (lines, jobs) = mpsc::channel(WAITING);
        let thread = std::thread::spawn(move || write_all(jobs, &mut io::stdout().lock()));
        (Self { lines }, thread)
    }

    /// Prints lines. On return they were written and flushed.
    pub(crate) async fn print(&self, text: impl Into<Vec<u8>>) -> Result<(), OutputClosed> {
        let (done, written) = oneshot::channel();
        self.lines.send(PrintJob { text: text.into(), done }).await.map_err(|_| OutputClosed)?;
        written.await.map_err(|_| OutputClosed)
    }

    /// Waits until nothing more can be written.
    pub(crate) async fn wait_closed(&self) {
        self.lines.closed().await;
    }
}

/// Writes all queued lines, flushes once, and then acknowledges them.
fn write_all(mut jobs: mpsc::Receiver<PrintJob>, out: &mut impl Write) -> io::Result<()> {
    let mut written = Vec::new();
    while let Some(first) = jobs.blocking_recv() {
        let mut next = Some(first);
        while let Some(job) = next {
            out.write_all(&job.text)?;
            written.push(job.done);
            next = jobs.try_recv().ok();
        }
        out.flush()?;
        // A caller that gave up waiting needs no acknowledgement.
        for done in written.drain(..) {
            let _ = done.send(());
        }
    }
    Ok(())
}

/// Maximum time to wait for a slow reader at the end.
const FAREWELL: Duration = Duration::from_secs(1);

/// Extent to which the output was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputRead {
    /// All of it.
    Whole,
    /// The reader has closed the pipe or has stopped reading.
    Partial,
}

/// Waits for the thread once all printers are dropped, and returns its result. It does not wait for
/// a reader that has stopped reading, because unwritten records were not counted as done.
pub(crate) async fn end(thread: JoinHandle<io::Result<()>>) -> Result<OutputRead, CommandFailure> {
    let ended = tokio::task::spawn_blocking(move || thread.join());
    match tokio::time::timeout(FAREWELL, ended).await {
        Ok(Ok(Ok(end))) => exit_result(end),
        Ok(_) => Err(CommandFailure::result("the printing thread panicked")),
        Err(_) => Ok(OutputRead::Partial),
    }
}

fn exit_result(end: io::Result<()>) -> Result<OutputRead, CommandFailure> {
    match end {
        Ok(()) => Ok(OutputRead::Whole),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(OutputRead::Partial),
        Err(error) => Err(crate::output::unwritten(&error)),
    }
}
