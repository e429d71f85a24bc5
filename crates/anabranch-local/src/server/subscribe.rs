//! `SubscribeToShard`: a response body of event-stream frames that lasts as long as the
//! subscription.
//!
//! An error at the start is an HTTP error; a later one is a frame. Frames are made as the client
//! reads them, so a slow client holds one event and not a queue of them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use tokio::sync::watch;

use super::body::{Chunks, ResponseBody};
use super::dispatch::{OperationCall, guarded};
use super::http::asked;
use super::reply;
use super::route::{ReplyDropped, Service};
use super::target::Encoding;
use crate::engine::Engine;
use crate::error::ErrorKind;
use crate::subscription::Subscription;
use crate::wire::{event_stream, subscription};

/// Begins a subscription and answers with its frames.
pub(super) fn answer(
    service: &Service,
    encoding: Encoding,
    body: &[u8],
) -> Result<Response<ResponseBody>, ReplyDropped> {
    let call = OperationCall { encoding, body };
    match guarded(|| service.engine.subscribe_to_shard(&call.request()?)) {
        Ok(subscription) => {
            let stop = service.stop.clone();
            let engine = Arc::clone(&service.engine);
            let frames = SubscriptionFrames {
                engine,
                subscription,
                stop,
                next: FrameState::InitialResponse,
            };
            let mut response = Response::new(ResponseBody::stream(Box::new(frames)));
            let kind = HeaderValue::from_static("application/vnd.amazon.eventstream");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            Ok(response)
        }
        Err(error) if error.kind == ErrorKind::ReplyLost => Err(ReplyDropped),
        Err(error) => Ok(reply::error(&error, encoding)),
    }
}

/// The frames of one subscription.
struct SubscriptionFrames {
    /// Waits for records to become durable.
    engine: Arc<Engine>,
    /// The source of the events.
    subscription: Subscription,
    /// Ends the frames when the server stops.
    stop: watch::Receiver<bool>,
    /// The kind of the next frame.
    next: FrameState,
}

enum FrameState {
    /// The first frame, which clients wait for.
    InitialResponse,
    /// An event.
    Event,
    /// No further frame, after an error.
    Nothing,
}

impl SubscriptionFrames {
    /// Returns the next frame, or `None` at the end.
    async fn frame(&mut self) -> Option<Vec<u8>> {
        match self.next {
            FrameState::InitialResponse => {
                self.next = FrameState::Event;
                Some(event_stream::initial_response())
            }
            FrameState::Nothing => None,
            FrameState::Event => {
                let event = tokio::select! {
                    biased;
                    () = asked(&mut self.stop) => None,
                    event = self.subscription.next() => event,
                };
                match event? {
                    // A subscriber must not act on records that a power cut could still lose.
                    Ok(event) => match self.engine.durable().await {
                        Ok(()) => Some(subscription::event(&event)),
                        Err(error) => {
                            self.next = FrameState::Nothing;
                            Some(subscription::failure(&error))
                        }
                    },
                    Err(error) => {
                        self.next = FrameState::Nothing;
                        Some(subscription::failure(&error))
                    }
                }
            }
        }
    }
}

impl Chunks for SubscriptionFrames {
    fn next(
        mut self: Box<Self>,
    ) -> Pin<Box<dyn Future<Output = Option<(Bytes, Box<dyn Chunks>)>> + Send>> {
        Box::pin(async move {
            let frame = self.frame().await?;
            Some((Bytes::from(frame), self as Box<dyn Chunks>))
        })
    }
}
