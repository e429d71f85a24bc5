//! Records events with the `metrics` facade.
//!
//! The program chooses the exporter, if any. `docs/metrics.md` lists the names.
//!
//! ```
//! use anabranch::event::Events;
//!
//! let events = anabranch::metrics::listener();          // metrics alone
//! let events = events.and(Events::new(|event| println!("{event:?}")));   // and a listener of one's own
//! # let _ = events;
//! ```

mod shard;
mod lease;
mod producer;

use crate::event::{Event, Events};

/// Returns a listener that passes every event to the recorder that the program has installed.
pub fn listener() -> Events {
    Events::new(record)
}

/// Passes one event to the recorder that the program has installed.
pub fn record(event: &Event) {
    match event {
        Event::Shard(event) => shard::record(event),
        Event::Lease(event) => lease::record(event),
        Event::Producer(event) => producer::record(event),
        Event::Relay(_) => {}
    }
}

#[cfg(test)]
mod tests;
