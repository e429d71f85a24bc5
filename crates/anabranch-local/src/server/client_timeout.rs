//! Limits on how long a client may keep the server waiting.
//!
//! | the server waits for                     | a client that makes it wait too long         |
//! |------------------------------------------|----------------------------------------------|
//! | a complete request head                  | loses its connection                         |
//! | the next bytes of a body (`route::read`) | is answered 408                              |
//! | the socket to accept more of a reply     | loses its connection                         |
//! | an HTTP/2 window for more of a reply     | loses that stream; others of the connection  |
//! |                                          | continue                                     |
//! | the answer to an HTTP/2 ping             | loses its connection                         |
//!
//! A connection that is idle between two requests is left alone. In HTTP/2 the server pings the
//! client after each such time without a complete frame; a client in the middle of a header block
//! cannot answer. Other waits are counted in ticks of a quarter of the limit, so they last between
//! 1 and 1.25 times the limit.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Version;
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::body::ResponseBody;

/// Default limit on how long a client may keep the server waiting.
pub(crate) const CLIENT_TIMEOUT: Duration = Duration::from_mins(1);
/// Number of ticks in the limit.
const TICKS: u32 = 4;
/// Number of bytes of a reply passed to an HTTP/2 stream at once. The rest waits until the client
/// opens a window for it.
const PIECE_BYTES: usize = 256 * 1024;

/// A wait: 0 if there is none, else the number of ticks that it has lasted plus one.
#[derive(Debug, Default)]
struct WaitTicks(AtomicU32);

impl WaitTicks {
    fn begin(&self) {
        // Does not restart a wait in progress.
        let _ = self.0.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Begins a wait on a pending outcome, and ends it on a ready one.
    fn note<T>(&self, outcome: Poll<T>) -> Poll<T> {
        match outcome {
            Poll::Pending => self.begin(),
            Poll::Ready(_) => self.end(),
        }
        outcome
    }

    /// Counts a tick. Returns true if the wait has exceeded the limit.
    fn tick(&self) -> bool {
        let add = |ticks: u32| (ticks > 0).then(|| ticks.saturating_add(1));
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        before.is_ok_and(|ticks| ticks > TICKS)
    }
}

/// Waits of the server for the client of one connection.
#[derive(Debug)]
pub(super) struct ClientTimer {
    /// Maximum duration of a wait.
    limit: Duration,
    /// Wait for the head of a request.
    head: WaitTicks,
    /// Wait for the socket to accept bytes.
    write: WaitTicks,
    /// Wait for the socket to accept the bytes that a layer above it buffers. Separate from
    /// `write`, because flushing a socket without such a layer always succeeds at once and would
    /// end that wait.
    flush: WaitTicks,
    /// Number of requests not yet answered.
    requests: AtomicUsize,
    /// True on an HTTP/2 connection, whose frames between requests are not a request head.
    http2: AtomicBool,
}

impl ClientTimer {
    /// Starts the timer of a newly accepted connection, which waits for its first request.
    pub(super) fn new(limit: Duration, http2: bool) -> Arc<Self> {
        let (head, write, flush) =
            (WaitTicks::default(), WaitTicks::default(), WaitTicks::default());
        head.begin();
        let (requests, http2) = (AtomicUsize::new(0), AtomicBool::new(http2));
        Arc::new(Self { limit, head, write, flush, requests, http2 })
    }

    /// Records the arrival of a request.
    pub(super) fn request(self: &Arc<Self>, version: Version) -> OpenRequest {
        self.http2.store(version == Version::HTTP_2, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.head.end();
        OpenRequest(Arc::clone(self))
    }

    /// Returns the maximum duration of a wait.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns true if HTTP/2 was negotiated or an HTTP/2 request has arrived.
    pub(super) fn speaks_http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }

    /// Records the arrival of bytes. Between two requests they begin the head of the next one.
    fn received(&self) {
        let is_head = self.requests.load(Ordering::Relaxed) == 0;
        if is_head && !self.speaks_http2() {
            self.head.begin();
        }
    }

    /// Returns once the client has kept the server waiting for too long.
    pub(super) async fn wait_overdue(&self) {
        while {
            tokio::time::sleep(self.limit / TICKS).await;
            // Every wait must be ticked, so this must not stop at the first overdue one.
            ![&self.head, &self.write, &self.flush].map(WaitTicks::tick).contains(&true)
        } {}
    }
}

/// A request not yet answered.
pub(super) struct OpenRequest(Arc<ClientTimer>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that records its waits in a [`ClientTimer`].
pub(super) struct TimedConnection<S> {
    stream: S,
    pace: Arc<ClientTimer>,
}

impl<S> TimedConnection<S> {
    pub(super) fn new(stream: S, pace: Arc<ClientTimer>) -> Self {
        Self { stream, pace }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.pace.received();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedConnection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.pace.write.note(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.pace.write.note(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        self.pace.flush.note(outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

tokio::task_local! {
    /// The window of the HTTP/2 stream that the task answers.
    static WINDOW: Arc<ReplyWindow>;
}

/// Tracks whether the client of an HTTP/2 stream accepts the reply.
#[derive(Debug, Default)]
pub(super) struct ReplyWindow(WaitTicks);

impl ReplyWindow {
    /// Runs the task of an HTTP/2 stream. Drops it if the client does not read the reply, which
    /// resets the stream.
    pub(super) async fn watch(limit: Duration, stream: impl Future<Output = ()>) {
        let window = Arc::new(Self::default());
        let watched = WINDOW.scope(Arc::clone(&window), stream);
        tokio::select! {
            biased;
            () = window.wait_stalled(limit) => {}
            () = watched => {}
        }
    }

    /// Returns once a part of the reply has waited for too long.
    async fn wait_stalled(&self, limit: Duration) {
        while {
            tokio::time::sleep(limit / TICKS).await;
            !self.0.tick()
        } {}
    }
}

/// A reply that tracks whether its client accepts it.
pub(super) struct TimedReply {
    reply: ResponseBody,
    /// The bytes not yet passed to the stream.
    rest: Bytes,
    /// The window of the HTTP/2 stream; `None` in HTTP/1.1.
    window: Option<Arc<ReplyWindow>>,
    _request: OpenRequest,
}

impl TimedReply {
    /// Wraps the reply to a request. Must run in the task that answers the request.
    pub(super) fn new(reply: ResponseBody, version: Version, request: OpenRequest) -> Self {
        let window = (version == Version::HTTP_2).then(|| WINDOW.try_with(Arc::clone).ok());
        Self { reply, rest: Bytes::new(), window: window.flatten(), _request: request }
    }

    /// Takes the next piece from the rest. The last byte of a reply is a piece by itself. It is
    /// sent only once the client has a window for everything before it, so a reply that is left
    /// unread does not end.
    fn piece(&mut self) -> Bytes {
        let mut length = self.rest.len().min(PIECE_BYTES);
        if length == self.rest.len() && length > 1 && self.reply.is_end_stream() {
            length -= 1;
        }
        self.rest.split_to(length)
    }
}

impl Body for TimedReply {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(window) = self.window.clone() else {
            return Pin::new(&mut self.reply).poll_frame(cx);
        };
        window.0.end();
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.reply).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                end => return Poll::Ready(end),
            }
        }
        let piece = self.piece();
        // The wait ends with the next piece, or with the end of the task, once the client has a
        // window for this one.
        window.0.begin();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.reply.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (reply, rest) = (self.reply.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(reply.lower() + rest);
        if let Some(upper) = reply.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_too_long_after_its_ticks_and_not_before() {
        let wait = WaitTicks::default();
        assert!((0..10).all(|_| !wait.tick()), "there is none");
        wait.begin();
        let ticks: Vec<bool> = (0..5).map(|_| wait.tick()).collect();
        assert_eq!(ticks, [false, false, false, false, true]);
        wait.begin();
        assert!(wait.tick(), "it goes on");
        wait.end();
        wait.begin();
        assert!(!wait.tick(), "another one");
    }
}
