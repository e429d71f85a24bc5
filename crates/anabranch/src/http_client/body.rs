//! Request and reply bodies. When both have ended, the connection is free for the next call.

use super::error::CallError;
use super::pool::LeasedConnection;
use aws_smithy_types::body::{self, SdkBody};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

/// Set once the last piece of a request was passed to its connection, which may still be sending
/// it.
#[derive(Debug, Clone, Default)]
pub(super) struct Uploaded(Arc<AtomicBool>);

impl Uploaded {
    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The body of a request.
#[derive(Debug)]
pub(super) struct RequestBody {
    body: SdkBody,
    uploaded: Uploaded,
}

impl RequestBody {
    pub(super) fn new(body: SdkBody) -> Self {
        let request = Self { body, uploaded: Uploaded::default() };
        request.note_end();
        request
    }

    pub(super) fn uploaded(&self) -> Uploaded {
        self.uploaded.clone()
    }

    fn note_end(&self) {
        if self.body.is_end_stream() {
            self.uploaded.set();
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = body::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, body::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        match &frame {
            Poll::Ready(None) => self.uploaded.set(),
            Poll::Ready(Some(Ok(_))) => self.note_end(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a reply. Dropping it before its end closes the connection.
#[derive(Debug)]
pub(super) struct ReplyBody {
    body: Incoming,
    /// `Some` until the end of the body.
    lent: Option<LeasedConnection>,
    uploaded: Uploaded,
}

impl ReplyBody {
    pub(super) fn new(body: Incoming, lent: LeasedConnection, uploaded: Uploaded) -> Self {
        let mut reply = Self { body, lent: Some(lent), uploaded };
        if reply.body.is_end_stream() {
            reply.end();
        }
        reply
    }

    fn end(&mut self) {
        let Some(lent) = self.lent.take() else { return };
        if self.uploaded.is_set() {
            lent.give_back();
        } else {
            // The reply ended before the request was fully uploaded; the rest would precede the
            // next request.
            lent.discard();
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = body::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, body::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let frame = frame.map_err(|error| -> body::Error {
            match &self.lent {
                Some(lent) if lent.is_dead() => CallError::Silent.into(),
                _ => error.into(),
            }
        });
        match &frame {
            Poll::Ready(None) => self.end(),
            // A reader that knows the length does not poll again after the last byte.
            Poll::Ready(Some(Ok(_))) if self.body.is_end_stream() => self.end(),
            Poll::Ready(Some(_)) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
