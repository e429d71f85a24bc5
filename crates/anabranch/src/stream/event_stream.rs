//! Adapts an event source, which yields one event per call, to a subscription's `Stream`.

use super::api::{StreamError, Subscription, SubscriptionEvent};
use futures_core::Stream;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The source of a subscription's events.
pub(crate) trait EventSource: Send + Sized + 'static {
    /// Returns the next event, or `None` at the end.
    fn next(
        &mut self,
    ) -> impl Future<Output = Option<Result<SubscriptionEvent, StreamError>>> + Send;
}

/// Result of waiting for one event: the source, for the next call, and the event.
type EventFuture<S> = (S, Option<Result<SubscriptionEvent, StreamError>>);

/// Polls a source for one event at a time. After an error or the end it is not polled again.
struct EventStream<S> {
    /// The wait for the next event, which owns the source. `None` at the end.
    turn: Option<Pin<Box<dyn Future<Output = EventFuture<S>> + Send>>>,
}

/// Returns the events of `source` as a subscription.
pub(crate) fn of_source<S: EventSource>(source: S) -> Subscription {
    Box::pin(EventStream { turn: Some(turn(source)) })
}

fn turn<S: EventSource>(mut source: S) -> Pin<Box<dyn Future<Output = EventFuture<S>> + Send>> {
    Box::pin(async move {
        let event = source.next().await;
        (source, event)
    })
}

impl<S: EventSource> Stream for EventStream<S> {
    type Item = Result<SubscriptionEvent, StreamError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(waiting) = &mut self.turn else { return Poll::Ready(None) };
        let (source, event) = ready!(waiting.as_mut().poll(context));
        let goes_on = matches!(event, Some(Ok(_)));
        self.turn = goes_on.then(|| turn(source));
        Poll::Ready(event)
    }
}
