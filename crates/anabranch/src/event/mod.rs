//! Events for logs, metrics, the simulator's history and tests.

mod lease;
mod shard;
mod producer;
mod relay;

pub use lease::LeaseEvent;
pub use producer::ProducerEvent;
pub use relay::RelayEvent;
pub use shard::{ShardEvent, ShardStopReason};

use std::fmt;
use std::sync::Arc;

/// An event of this process.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// An event of this worker or its leases.
    Lease(LeaseEvent),
    /// An event of a shard that this worker reads.
    Shard(ShardEvent),
    /// An event of a producer.
    Producer(ProducerEvent),
    /// An event of an outbox relay.
    Relay(RelayEvent),
}

impl From<LeaseEvent> for Event {
    fn from(event: LeaseEvent) -> Self {
        Self::Lease(event)
    }
}

impl From<ShardEvent> for Event {
    fn from(event: ShardEvent) -> Self {
        Self::Shard(event)
    }
}

impl From<ProducerEvent> for Event {
    fn from(event: ProducerEvent) -> Self {
        Self::Producer(event)
    }
}

impl From<RelayEvent> for Event {
    fn from(event: RelayEvent) -> Self {
        Self::Relay(event)
    }
}

/// Destination of events. Clones share one listener.
///
/// The listener is called where the event happens, so it must not block. If it panics, the panic
/// hook reports the panic, and the emitting code continues.
#[derive(Clone)]
pub struct Events(Arc<dyn Fn(&Event) + Send + Sync>);

impl Events {
    /// Returns a destination that passes every event to `listener`.
    pub fn new(listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listener))
    }

    /// Returns a destination that discards all events.
    pub fn none() -> Self {
        Self::new(|_| ())
    }

    /// Returns a destination that passes every event to the listeners of `self` and then to those
    /// of `other`.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::new(move |event| {
            (self.0)(event);
            (other.0)(event);
        })
    }

    /// Passes an event to the listener.
    pub fn emit(&self, event: impl Into<Event>) {
        let event = event.into();
        // A listener may leave its own state half changed, but nothing here reads that state.
        let heard = std::panic::AssertUnwindSafe(|| (self.0)(&event));
        let _ = std::panic::catch_unwind(heard);
    }
}

impl Default for Events {
    fn default() -> Self {
        Self::none()
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_model::lease::WorkerId;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_listener_that_panics_stops_nothing_and_hears_the_next_event() {
        let heard = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&heard);
        let events = Events::new(move |_| {
            assert_ne!(counter.fetch_add(1, Ordering::Relaxed), 0, "on purpose");
        });
        for _ in 0..2 {
            events.emit(LeaseEvent::Joined { worker: WorkerId::from("a") });
        }
        assert_eq!(heard.load(Ordering::Relaxed), 2);
    }
}
