//! Facts stored once for the whole application.

use super::listing::UnreadableRow;
use crate::ids::StreamName;
use std::collections::BTreeMap;

/// Facts about the application and its streams. Only the native layout stores them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct ApplicationFacts {
    /// Version of the plan, incremented by every write that changes it, so that an idle worker need
    /// not list leases.
    pub version: u64,
    /// Facts about each stream that the application reads.
    pub streams: BTreeMap<StreamName, StreamFacts>,
    /// Streams whose stored facts cannot be read.
    pub unreadable: Vec<UnreadableRow<StreamName>>,
}

impl ApplicationFacts {
    /// Returns true if the application has read the stream under this name.
    pub fn knows(&self, stream: &StreamName) -> bool {
        self.streams.contains_key(stream) || self.unreadable.iter().any(|it| it.key == *stream)
    }

    /// Returns the facts about a stream, or the reason why they cannot be read.
    pub fn facts(&self, stream: &StreamName) -> Result<Option<StreamFacts>, &str> {
        match self.unreadable.iter().find(|it| it.key == *stream) {
            Some(unreadable) => Err(&unreadable.why),
            None => Ok(self.streams.get(stream).copied()),
        }
    }
}

/// Facts that an application stores about a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct StreamFacts {
    /// Time at which the application first started on the stream, by the service's clock, in
    /// milliseconds since the Unix epoch. `LATEST` means this time, permanently and for every
    /// worker.
    pub t0_ms: u64,
    /// Creation time of the stream, in milliseconds since the Unix epoch. A different time means a
    /// different stream of the same name, for which the stored rows are not valid.
    pub created_ms: u64,
    /// True once every row of the first sync has been created. Until then no lease is taken.
    pub first_sync_done: bool,
}

/// Returns true if two creation times, in milliseconds, belong to one stream. Compares whole
/// seconds, as KCL does, because a service may round fractions differently.
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
