//! Request body in segments, so that large data are sent without copying.

use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use sha2::{Digest, Sha256};
use std::convert::Infallible;
use std::fmt::Write;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Segments that are sent one after the other. Clones share their memory.
#[derive(Debug, Clone)]
pub(super) struct SegmentedBody {
    all: Arc<[Bytes]>,
    /// Index of the segment to send next.
    next: usize,
    /// Bytes still to be sent.
    left: u64,
}

impl SegmentedBody {
    pub(super) fn new(all: Vec<Bytes>) -> Self {
        let left = all.iter().map(|piece| piece.len() as u64).sum();
        Self { all: all.into(), next: 0, left }
    }

    /// Returns the number of bytes still to be sent.
    pub(super) fn len(&self) -> u64 {
        self.left
    }

    /// Converts it to a request body. The body can be cloned for another attempt.
    pub(super) fn into_body(self) -> SdkBody {
        match &*self.all {
            [whole] => SdkBody::from(whole.clone()),
            _ => SdkBody::retryable(move || SdkBody::from_body_1_x(self.clone())),
        }
    }
}

impl Body for SegmentedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(piece) = self.all.get(self.next).cloned() else { return Poll::Ready(None) };
        self.next += 1;
        self.left -= piece.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.next == self.all.len()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Returns the SHA-256 of a segmented body in hexadecimal, for the signature. The SDK computes it
/// only for contiguous bodies. Returns `None` for those, and for a body whose bytes are not all
/// available.
pub(super) fn digest(body: &SdkBody) -> Option<String> {
    if body.bytes().is_some() {
        return None;
    }
    let mut again = pin!(body.try_clone()?);
    let mut hash = Sha256::new();
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match again.as_mut().poll_frame(&mut context) {
            Poll::Ready(Some(Ok(frame))) => hash.update(frame.data_ref()?),
            Poll::Ready(None) => break,
            Poll::Ready(Some(Err(_))) | Poll::Pending => return None,
        }
    }
    let mut hex = String::with_capacity(64);
    for byte in hash.finalize() {
        write!(hex, "{byte:02x}").ok()?;
    }
    Some(hex)
}
