//! Standard output for records: a thread of its own, because who reads it may be slow, and nothing
//! else of the process may wait for that.

use std::io::{self, Write};
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot};

/// Lines that may wait for the thread.
const WAITING: usize = 256;

/// Prints lines in the order in which they were given. Clones share one output.
#[derive(Clone, Debug)]
pub(crate) struct Printer {
    lines: mpsc::Sender<Job>,
}

/// Lines, and whom to tell that they were written.
struct Job {
    text: Vec<u8>,
    done: oneshot::Sender<()>,
}

/// What a handler says when nobody reads any more.
pub(crate) const NOBODY_READS: &str = "nobody reads standard output any more";

/// Nobody reads any more: the pipe is closed, or the disk is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;

impl Printer {
    /// A printer to standard output, and the thread, which ends with why nothing more could be
    /// written.
    pub(crate) fn start() -> (Self, JoinHandle<io::Result<()>>) {
        let (lines, jobs) = mpsc::channel(WAITING);
        let thread = std::thread::spawn(move || write_all(jobs, &mut io::stdout().lock()));
        (Self { lines }, thread)
    }

    /// Prints lines. When it returns, whoever reads the output has them or will get them.
    pub(crate) async fn print(&self, text: impl Into<Vec<u8>>) -> Result<(), Gone> {
        let (done, written) = oneshot::channel();
        self.lines.send(Job { text: text.into(), done }).await.map_err(|_| Gone)?;
        written.await.map_err(|_| Gone)
    }

    /// Waits until nothing more can be written.
    pub(crate) async fn gone(&self) {
        self.lines.closed().await;
    }
}

/// Writes what waits, flushes once, and then tells everybody.
fn write_all(mut jobs: mpsc::Receiver<Job>, out: &mut impl Write) -> io::Result<()> {
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

/// What a printer's end means: a closed pipe is the reader's right.
pub(crate) fn judge(end: io::Result<()>) -> Result<(), crate::failure::Failure> {
    match end {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(crate::output::unwritten(&error))
        }
        _ => Ok(()),
    }
}
