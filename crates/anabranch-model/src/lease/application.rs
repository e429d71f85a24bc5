//! What is stored once for the whole application.

use crate::ids::StreamName;
use std::collections::BTreeMap;

/// The application's own facts. Only the native layout keeps them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct Application {
    /// Moved by every write that changes the plan, so that an idle worker need not list leases.
    pub version: u64,
    /// What is known of each stream that the application reads.
    pub streams: BTreeMap<StreamName, StreamFacts>,
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
