//! The seam to durable storage: what the engine says before a change becomes visible.

use crate::change::Change;
use crate::engine::Engine;
use crate::shard_log::LogRecord;
use std::future::Future;
use std::io;
use std::pin::Pin;

/// Records that one shard takes in at one moment.
#[derive(Debug, Clone, Copy)]
pub struct JournalAppend<'a> {
    /// The number of the stream within the engine; a name may be used again, a number never.
    pub stream_id: u64,
    /// The shard's index.
    pub shard: u32,
    /// The counter of the first record; the others follow without a gap.
    pub first_counter: u64,
    /// When all of them arrived, in milliseconds since 1970.
    pub arrival_ms: u64,
    /// The records in order.
    pub records: &'a [LogRecord<'a>],
}

/// Keeps what happened, so that it can be played again.
///
/// Both writes are called under the lock that makes the change visible afterwards: the order of
/// the journal is the order in which readers see things. An error means that nothing happens.
pub trait Journal: Send + Sync {
    /// Keeps a change of metadata.
    fn change(&self, change: &Change) -> io::Result<()>;
    /// Keeps records.
    fn append(&self, append: &JournalAppend<'_>) -> io::Result<()>;
    /// Waits until everything kept so far survives a loss of power, as far as the policy asks.
    fn durable(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>>;
    /// Does what is due with old entries. Called often, with no lock of the engine held.
    fn run_maintenance(&self, engine: &Engine);
}
