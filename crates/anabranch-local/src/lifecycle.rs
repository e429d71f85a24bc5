//! Passing states: CREATING, UPDATING and DELETING end by themselves, by the engine's clock.

use serde::Serialize;

/// Where a stream or consumer is in its life. A passing state ends when the clock reaches its end,
/// and not by a timer: whoever looks compares with the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifecycle {
    /// CREATING, then ACTIVE.
    Creating { until_ms: u64 },
    /// UPDATING, then ACTIVE.
    Updating { until_ms: u64 },
    /// DELETING, then gone.
    Deleting { until_ms: u64 },
}

/// The status that the API shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// Being created.
    Creating,
    /// In service, and being changed.
    Updating,
    /// In service.
    Active,
    /// Being deleted.
    Deleting,
}

impl Status {
    /// The status as the API writes it.
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
    /// The status at `now_ms`. `None` when the thing is gone.
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
