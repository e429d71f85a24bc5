//! Transitional states: CREATING, UPDATING and DELETING, which end by the engine's clock.

use serde::Serialize;

/// The state of a stream or consumer. A transitional state ends when the clock reaches its end.
/// There is no timer: each reader compares the end with the current time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifecycle {
    /// CREATING, then ACTIVE.
    Creating { until_ms: u64 },
    /// UPDATING, then ACTIVE.
    Updating { until_ms: u64 },
    /// DELETING, then nonexistent.
    Deleting { until_ms: u64 },
}

/// The status that the API shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// Being created.
    Creating,
    /// In service and being changed.
    Updating,
    /// In service.
    Active,
    /// Being deleted.
    Deleting,
}

impl Status {
    /// Returns the status as the API writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Creating => "CREATING",
            Self::Updating => "UPDATING",
            Self::Active => "ACTIVE",
            Self::Deleting => "DELETING",
        }
    }
}

impl Lifecycle {
    /// Returns the status at `now_ms`, or `None` once the stream or consumer no longer exists.
    pub(crate) fn status(self, now_ms: u64) -> Option<Status> {
        match self {
            Self::Creating { until_ms } if now_ms < until_ms => Some(Status::Creating),
            Self::Updating { until_ms } if now_ms < until_ms => Some(Status::Updating),
            Self::Deleting { until_ms } if now_ms < until_ms => Some(Status::Deleting),
            Self::Deleting { .. } => None,
            Self::Creating { .. } | Self::Updating { .. } => Some(Status::Active),
        }
    }
}
