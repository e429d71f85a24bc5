//! Standard output for records: a thread of its own, because who reads it may be slow, and nothing
//! else of the process may wait for that.

use crate::failure::CommandFailure;
use std::io::{self, Write};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Lines that may wait for the thread.
const WAITING: usize = 256;

/// Prints lines in the order in which they were given. Clones share one output.
#[derive(Clone, Debug)]
pub(crate) struct Printer {
    lines: mpsc::Sender<PrintJob>,
}

/// Lines, and whom to tell that they were written.
struct PrintJob {
    text: Vec<u8>,
    done: oneshot::Sender<()>,
}

/// What a handler says when nobody reads any more.
pub(crate) const NOBODY_READS: &str = "nobody reads standard output any more";

/// Nobody reads any more: the pipe is closed, or the disk is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputClosed;

impl Printer {
    /// A printer to standard output, and the thread, which ends with why nothing more could be
    /// written.
    pub(crate) fn start() -> (Self, JoinHandle<io::Result<()>>) {
        let (lines, jobs) = mpsc::channel(WAITING);
        let thread = std::thread::spawn(move || write_all(jobs, &mut io::stdout().lock()));
        (Self { lines }, thread)
    }

    /// Prints lines. When it returns, whoever reads the output has them or will get them.
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

/// Writes what waits, flushes once, and then tells everybody.
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
        // Who gave up waiting need not be told.
        for done in written.drain(..) {
            let _ = done.send(());
        }
    }
    Ok(())
}

/// How long whoever reads the output is waited for once the work is over.
const FAREWELL: Duration = Duration::from_secs(1);

/// Whether everything that was given to a printer was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputRead {
    /// All of it.
    Whole,
    /// The reader has closed the pipe, which is its right, or takes nothing.
    Partial,
}

/// Waits for the thread, once all printers are dropped, and says what its end means. A reader that
/// takes nothing is not waited for: what it was not given was not counted as done.
pub(crate) async fn end(thread: JoinHandle<io::Result<()>>) -> Result<OutputRead, CommandFailure> {
    let ended = tokio::task::spawn_blocking(move || thread.join());
    match tokio::time::timeout(FAREWELL, ended).await {
        Ok(Ok(Ok(end))) => exit_result(end),
        Ok(_) => Err(CommandFailure::result("the thread that prints fell over")),
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
