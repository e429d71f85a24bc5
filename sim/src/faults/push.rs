//! A subscription behind the network: events arrive at the host's own pace until the connection
//! breaks.

use super::network::HostLink;
use super::stream::weather;
use anabranch::stream::api::{StreamError, Subscription, SubscriptionEvent};
use anabranch_model::record::Record;
use anabranch_model::retry::Fault;
use futures_core::Stream;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Sleep;

/// Pause between two polls for an event, in milliseconds.
const LOOK_MS: u64 = 25;

/// Callback for the records that a subscription delivers.
type RecordObserver = Box<dyn Fn(&[Record]) + Send>;

/// Events of a subscription as one host receives them. The inner subscription is polled
/// periodically with a no-op waker, so that the order of wake-ups stays deterministic.
pub(super) struct FaultySubscription {
    /// The inner subscription.
    inner: Subscription,
    link: HostLink,
    /// Receives the records that arrive.
    heard: RecordObserver,
    /// Pause until the next poll.
    pause: Pin<Box<Sleep>>,
    /// True once the connection broke.
    broken: bool,
}

impl FaultySubscription {
    pub(super) fn new(inner: Subscription, link: HostLink, heard: RecordObserver) -> Self {
        Self { inner, link, heard, pause: Box::pin(pause()), broken: false }
    }
}

fn pause() -> Sleep {
    tokio::time::sleep(Duration::from_millis(LOOK_MS))
}

impl Stream for FaultySubscription {
    type Item = Result<SubscriptionEvent, StreamError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while !self.broken {
            let nobody = &mut Context::from_waker(Waker::noop());
            if let Poll::Ready(mut event) = self.inner.as_mut().poll_next(nobody) {
                if matches!(event, Some(Ok(_))) && self.link.breaks() {
                    self.broken = true;
                    let lost = weather(Fault::ReplyLost, "SubscribeToShard", "a shard");
                    return Poll::Ready(Some(Err(lost)));
                }
                if let Some(Ok(event)) = &mut event {
                    (self.heard)(&event.records);
                    if self.link.ends_falsely() {
                        event.continuation = None;
                        event.children.clear();
                        self.broken = true;
                    }
                }
                return Poll::Ready(event);
            }
            match self.pause.as_mut().poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) => self.pause = Box::pin(pause()),
            }
        }
        Poll::Ready(None)
    }
}
