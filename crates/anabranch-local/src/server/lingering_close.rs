//! Lingering close of HTTP/2 connections: the server waits for the client to close first.
//!
//! The JavaScript SDK sends a GOAWAY with each request and closes once its application has read the
//! reply. If the server closes a TLS connection before that, Node drops everything not yet read.
//! Without TLS, a window that the client opens for the last bytes would be answered with a reset,
//! which drops them too.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use super::client_timeout::ClientTimer;
use super::http::asked;

/// Maximum time to wait for the client to close, once everything has been sent.
const LINGER: Duration = Duration::from_secs(10);

/// A byte stream that delays its shutdown on HTTP/2 connections. It waits until the peer closes,
/// until [`LINGER`] or the client timeout has passed, or until the server stops.
pub(super) struct LingeringClose<S> {
    stream: S,
    pace: Arc<ClientTimer>,
    stop: watch::Receiver<bool>,
    /// The time limit of the wait, created when the shutdown begins.
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<S> LingeringClose<S> {
    pub(super) fn new(stream: S, pace: Arc<ClientTimer>, stop: watch::Receiver<bool>) -> Self {
        Self { stream, pace, stop, end: None }
    }
}

impl<S: AsyncRead + Unpin> LingeringClose<S> {
    /// Waits until the peer has closed or the wait is over.
    fn poll_peer_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (mut stop, limit) = (self.stop.clone(), self.pace.limit().min(LINGER));
        let end = self.end.get_or_insert_with(|| {
            Box::pin(async move {
                let _ = tokio::time::timeout(limit, asked(&mut stop)).await;
            })
        });
        if end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let mut scratch = [0; 1024];
        loop {
            let mut unread = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut unread)) {
                Ok(()) if !unread.filled().is_empty() => {}
                _ => return Poll::Ready(()),
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LingeringClose<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringClose<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        if self.pace.speaks_http2() {
            ready!(self.poll_peer_closed(cx));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
