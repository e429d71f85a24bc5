//! Detects a connection without a sign of life.
//!
//! A PING alone cannot tell a dead connection from a slow one, because on a slow line its answer
//! waits behind the upload. A write that the kernel accepts therefore counts as a sign of life too.
//! Small writes do not count, because they may be PINGs.

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

/// Writes of at least this size are part of a request.
const REQUEST_BYTES: usize = 512;

/// Time that data of a closed connection may take to reach the call.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Delay after the time-out before the connection is checked again.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// Liveness of one connection.
#[derive(Debug)]
pub(super) struct Liveness {
    clock: Clock,
    /// Time when data were last received or a part of a request was sent.
    progress_ms: AtomicU64,
    /// True while a call is in progress.
    is_busy: AtomicBool,
    /// True once the connection has been closed for silence.
    is_dead: AtomicBool,
    /// Cancelled when the transport is dropped.
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

    /// Begins a call: silence counts from now on.
    pub(super) fn begin_call(&self) {
        self.note_progress();
        self.is_busy.store(true, Ordering::Release);
    }

    /// Ends a call: silence no longer counts.
    pub(super) fn end_call(&self) {
        self.is_busy.store(false, Ordering::Relaxed);
    }

    /// Returns true if the connection was closed because it was silent.
    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// Waits until the transport is dropped, and then for its last data to reach the call.
    pub(super) async fn wait_closed(&self) {
        self.gone.cancelled().await;
        tokio::time::sleep(LAST_WORDS).await;
    }

    /// Waits until a call has had no sign of life for [`SILENCE_TIMEOUT`].
    pub(super) async fn wait_silent(&self) {
        let timeout_ms = u64::try_from(SILENCE_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
        let silent_ms = || {
            let progress_ms = self.progress_ms.load(Ordering::Relaxed);
            self.clock.now_ms().saturating_sub(progress_ms)
        };
        loop {
            // `begin_call` stores the progress before it sets `is_busy`, so they are read in
            // reverse order.
            if !self.is_busy.load(Ordering::Acquire) {
                // A call that begins during this sleep cannot time out before the sleep ends.
                tokio::time::sleep(SILENCE_TIMEOUT).await;
                continue;
            }
            let silent_ms_before = silent_ms();
            if silent_ms_before < timeout_ms {
                self.clock.sleep(timeout_ms - silent_ms_before).await;
                continue;
            }
            // A process that was frozen needs time to read what arrived meanwhile.
            tokio::time::sleep(SECOND_LOOK).await;
            if self.is_busy.load(Ordering::Acquire) && silent_ms() >= timeout_ms {
                self.is_dead.store(true, Ordering::Relaxed);
                return;
            }
        }
    }
}

/// A transport that records signs of life.
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
