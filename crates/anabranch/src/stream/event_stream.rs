//! A subscription as a `Stream`, made from a source that is asked for one event after another.

use super::api::{StreamError, Subscription, SubscriptionEvent};
use futures_core::Stream;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Where the events of a subscription come from.
pub(crate) trait EventSource: Send + Sized + 'static {
    /// The next event; `None` at the end.
    fn next(
        &mut self,
    ) -> impl Future<Output = Option<Result<SubscriptionEvent, StreamError>>> + Send;
}

/// What a wait for one event gives back: the source, to be asked again, and the event.
type EventFuture<S> = (S, Option<Result<SubscriptionEvent, StreamError>>);

/// Asks a source for one event at a time. After an error or the end it is not asked again.
struct EventStream<S> {
    /// The wait for the next event, with the source inside; `None` when it is over.
    turn: Option<Pin<Box<dyn Future<Output = EventFuture<S>> + Send>>>,
}

/// The events of `source`.
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
