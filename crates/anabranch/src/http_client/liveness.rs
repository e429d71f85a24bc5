//! Signs of life of a connection, and the end of one that shows none.
//!
//! A PING alone can't tell a dead connection from a slow one: on a slow line its answer waits behind
//! everything that is being uploaded. So a write that the system takes counts too. Small writes do
//! not: they are the PINGs themselves.

use super::SILENCE_TIMEOUT;
use crate::clock::Clock;
use hyper::rt::{Read, ReadBufCursor, Write};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A write from this size on is a part of a request.
const REQUEST_BYTES: usize = 512;

/// How long what a closed connection brought may take to reach the call.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// How long after the time-out a connection is looked at once more.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// The signs of life of one connection.
#[derive(Debug)]
pub(super) struct Liveness {
    clock: Clock,
    /// When something was last received, or a part of a request was sent.
    progress_ms: AtomicU64,
    /// Whether a call is under way.
    is_busy: AtomicBool,
    /// Whether it was given up.
    is_dead: AtomicBool,
    /// Cancelled when the transport is no more.
    gone: CancellationToken,
}

impl Liveness {
    pub(super) fn new() -> Arc<Self> {
        let clock = Clock::machine();
        let progress_ms = AtomicU64::new(clock.now_ms());
        let (is_busy, is_dead) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { clock, progress_ms, is_busy, is_dead, gone: CancellationToken::new() })
    }

    fn note_progress(&self) {
        self.progress_ms.store(self.clock.now_ms(), Ordering::Relaxed);
    }

    /// Begins a call: silence counts from now.
    pub(super) fn begin_call(&self) {
        self.note_progress();
        self.is_busy.store(true, Ordering::Release);
    }

    /// Ends a call: silence no longer counts.
    pub(super) fn end_call(&self) {
        self.is_busy.store(false, Ordering::Relaxed);
    }

    /// Returns whether the connection was given up because it was silent.
    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// Waits until the transport is no more, and its last words were heard.
    pub(super) async fn wait_closed(&self) {
        self.gone.cancelled().await;
        tokio::time::sleep(LAST_WORDS).await;
    }

    /// Waits until a call has been without a sign of life for too long.
    pub(super) async fn wait_silent(&self) {
        let timeout_ms = u64::try_from(SILENCE_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
        let silent_ms = || {
            let progress_ms = self.progress_ms.load(Ordering::Relaxed);
            self.clock.now_ms().saturating_sub(progress_ms)
        };
        loop {
            // In this order: the progress of a call is noted before it counts as busy.
            if !self.is_busy.load(Ordering::Acquire) {
                // The silence of a call that begins meanwhile is not over before this sleep is.
                tokio::time::sleep(SILENCE_TIMEOUT).await;
                continue;
            }
            let silent_ms_before = silent_ms();
            if silent_ms_before < timeout_ms {
                self.clock.sleep(timeout_ms - silent_ms_before).await;
                continue;
            }
            // A process that was frozen finds what came meanwhile first.
            tokio::time::sleep(SECOND_LOOK).await;
            if self.is_busy.load(Ordering::Acquire) && silent_ms() >= timeout_ms {
                self.is_dead.store(true, Ordering::Relaxed);
                return;
            }
        }
    }
}

/// A transport that notes signs of life.
#[derive(Debug)]
pub(super) struct MonitoredTransport<T> {
    pub(super) transport: T,
    pub(super) life: Arc<Liveness>,
}

impl<T> Drop for MonitoredTransport<T> {
    fn drop(&mut self) {
        self.life.gone.cancel();
    }
}

impl<T: Read + Unpin> Read for MonitoredTransport<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.transport).poll_read(context, buffer);
        if read.is_ready() {
            self.life.note_progress();
        }
        read
    }
}

impl<T: Write + Unpin> MonitoredTransport<T> {
    fn written(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(REQUEST_BYTES..)) = written {
            self.life.note_progress();
        }
        written
    }
}

impl<T: Write + Unpin> Write for MonitoredTransport<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.transport).poll_write(context, bytes);
        self.written(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.transport).poll_write_vectored(context, pieces);
        self.written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(context)
    }
}
