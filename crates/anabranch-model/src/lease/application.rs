//! What is stored once for the whole application.

use super::listing::UnreadableRow;
use crate::ids::StreamName;
use std::collections::BTreeMap;

/// The application's own facts. Only the native layout keeps them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct ApplicationFacts {
    /// Moved by every write that changes the plan, so that an idle worker need not list leases.
    pub version: u64,
    /// What is known of each stream that the application reads.
    pub streams: BTreeMap<StreamName, StreamFacts>,
    /// Streams of which something is known that can't be read.
    pub unreadable: Vec<UnreadableRow<StreamName>>,
}

impl ApplicationFacts {
    /// Whether the application has read the stream under this name.
    pub fn knows(&self, stream: &StreamName) -> bool {
        self.streams.contains_key(stream) || self.unreadable.iter().any(|it| it.key == *stream)
    }

    /// Returns what is known of a stream, or why that can't be read.
    pub fn facts(&self, stream: &StreamName) -> Result<Option<StreamFacts>, &str> {
        match self.unreadable.iter().find(|it| it.key == *stream) {
            Some(unreadable) => Err(&unreadable.why),
            None => Ok(self.streams.get(stream).copied()),
        }
    }
}

/// What an application has to remember of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct StreamFacts {
    /// When the application first started on the stream, by the service's clock, in milliseconds
    /// since 1970. `LATEST` means this moment, for every worker and for ever.
    pub t0_ms: u64,
    /// When the stream was created, in milliseconds since 1970. Another time is another stream
    /// under the same name, and its rows say nothing about it.
    pub created_ms: u64,
    /// Whether every row of the first sync was made. Until then nobody takes a lease.
    pub first_sync_done: bool,
}

/// Whether two creation times, in milliseconds, are those of one stream. Compares them in seconds,
/// as KCL does: a service that rounds a fraction differently has not created another stream.
pub fn is_same_creation(known_ms: u64, found_ms: u64) -> bool {
    known_ms / 1_000 == found_ms / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creation_times_are_compared_in_seconds() {
        for (found_ms, same) in [(7_000, true), (7_999, true), (6_999, false), (8_000, false)] {
            assert_eq!(is_same_creation(7_500, found_ms), same, "{found_ms}");
            assert_eq!(is_same_creation(found_ms, 7_500), same, "{found_ms}");
        }
    }
}
