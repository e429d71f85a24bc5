//! Actions that the daemon requests from a child.

use std::fmt;

/// An action requested from a child. Each is answered by one status that names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Action {
    /// Prepare for a shard.
    Initialize,
    /// Handle records.
    ProcessRecords,
    /// The shard now belongs to another worker.
    LeaseLost,
    /// The shard has no more records. The child must checkpoint its end.
    ShardEnded,
    /// The daemon is about to stop. The child may checkpoint its progress.
    ShutdownRequested,
    /// KCL 1.x's request for both a lost lease and the end of the shard.
    Shutdown,
}

impl Action {
    /// Returns the name used in the protocol.
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

/// Protocol version of the messages that end a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ShutdownMessages {
    /// `leaseLost` and `shardEnded`, as in KCL 2.x and 3.x.
    #[default]
    Kcl2,
    /// `shutdown` with the reason `ZOMBIE` or `TERMINATE`, as in KCL 1.x.
    Kcl1,
}
