//! The body of a response: one buffer, or a stream of chunks.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// The next chunk of a stream and the source of the rest; `None` at its end.
type NextChunk = Option<(Bytes, Box<dyn Chunks>)>;

/// A source of chunks. It returns itself with each chunk, so that the future owns all it needs.
pub(crate) trait Chunks: Send {
    /// Waits for the next chunk.
    fn next(self: Box<Self>) -> Pin<Box<dyn Future<Output = NextChunk> + Send>>;
}

/// The body of a response.
pub(crate) enum ResponseBody {
    /// The complete body.
    Whole(Bytes),
    /// Chunks as they arrive.
    Stream(Pin<Box<dyn Future<Output = NextChunk> + Send>>),
    /// The end of the body.
    Done,
}

impl ResponseBody {
    /// Creates a body that lasts as long as its source.
    pub(crate) fn stream(source: Box<dyn Chunks>) -> Self {
        Self::Stream(source.next())
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let (chunk, rest) = match std::mem::replace(&mut *self, Self::Done) {
            Self::Done => return Poll::Ready(None),
            Self::Whole(bytes) if bytes.is_empty() => return Poll::Ready(None),
            Self::Whole(bytes) => (bytes, Self::Done),
            Self::Stream(mut next) => match next.as_mut().poll(cx) {
                Poll::Pending => {
                    *self = Self::Stream(next);
                    return Poll::Pending;
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some((chunk, source))) => (chunk, Self::stream(source)),
            },
        };
        *self = rest;
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Done => true,
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Done => SizeHint::with_exact(0),
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}
