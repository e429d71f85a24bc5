//! What a child can be asked for.

use std::fmt;

/// What a child can be asked for. Each is answered by one status that names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Action {
    /// Get ready for a shard.
    Initialize,
    /// Handle records.
    ProcessRecords,
    /// The shard is somebody else's now.
    LeaseLost,
    /// The shard has no more records: checkpoint its end.
    ShardEnded,
    /// The daemon is about to stop: checkpoint what is done.
    ShutdownRequested,
    /// KCL 1.x's word for the loss of the lease and for the end of the shard.
    Shutdown,
}

impl Action {
    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::ProcessRecords => "processRecords",
            Self::LeaseLost => "leaseLost",
            Self::ShardEnded => "shardEnded",
            Self::ShutdownRequested => "shutdownRequested",
            Self::Shutdown => "shutdown",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a child is told that its shard is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ShutdownMessages {
    /// `leaseLost` and `shardEnded`, as KCL 2.x and 3.x.
    #[default]
    Kcl2,
    /// `shutdown` with the reason `ZOMBIE` or `TERMINATE`, as KCL 1.x.
    Kcl1,
}
