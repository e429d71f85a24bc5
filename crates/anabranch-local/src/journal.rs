//! The interface to durable storage: the engine reports to it before a change becomes visible.

use crate::change::Change;
use crate::engine::Engine;
use crate::shard_log::LogRecord;
use std::future::Future;
use std::io;
use std::pin::Pin;

/// Records that one shard accepts at the same time.
#[derive(Debug, Clone, Copy)]
pub struct JournalAppend<'a> {
    /// The number of the stream within the engine. A name may be reused, a number never is.
    pub stream_id: u64,
    /// The shard's index.
    pub shard: u32,
    /// The counter of the first record. The others follow without a gap.
    pub first_counter: u64,
    /// Arrival time of all records, in milliseconds since 1970.
    pub arrival_ms: u64,
    /// The records in order.
    pub records: &'a [LogRecord<'a>],
}

/// Storage of everything that happens in an engine, for later replay.
///
/// Both writes are called under the lock that then makes the change visible, so the order in the
/// journal is the order that readers see. If a write fails, the change does not happen.
pub trait Journal: Send + Sync {
    /// Writes a change of metadata.
    fn change(&self, change: &Change) -> io::Result<()>;
    /// Writes records of one shard.
    fn append(&self, append: &JournalAppend<'_>) -> io::Result<()>;
    /// Waits until everything kept so far survives a power cut, as far as the sync policy requires.
    fn durable(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>>;
    /// Runs maintenance of old entries that is due. Called often, with no lock of the engine held.
    fn run_maintenance(&self, engine: &Engine);
}
