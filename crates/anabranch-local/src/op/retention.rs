//! The shared part of lengthening and shortening the retention period.

use crate::change::ChangeKind;
use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::{Operation, StreamTarget};
use anabranch_model::limits;
use serde::Deserialize;

/// Request of `IncreaseStreamRetentionPeriod` and `DecreaseStreamRetentionPeriod`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    pub retention_period_hours: Option<i64>,
}

/// The direction in which an operation may change the retention period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetentionChange {
    Longer,
    Shorter,
}

impl RetentionChange {
    /// Returns the operation of this direction.
    fn operation(self) -> Operation {
        match self {
            Self::Longer => Operation::IncreaseStreamRetentionPeriod,
            Self::Shorter => Operation::DecreaseStreamRetentionPeriod,
        }
    }

    /// Returns an error if `hours` differs from `current` in the wrong direction.
    fn check(self, stream: &str, hours: u32, current: u32) -> Result<(), ApiError> {
        let (wrong, other) = match self {
            Self::Longer if hours < current => ("shorter", "DecreaseRetentionPeriod"),
            Self::Shorter if hours > current => ("longer", "IncreaseRetentionPeriod"),
            Self::Longer | Self::Shorter => return Ok(()),
        };
        Err(ApiError::invalid(format!(
            "Requested retention period ({hours} hours) for stream {stream} can not be {wrong} \
             than existing retention period ({current} hours). Use {other} API."
        )))
    }
}

impl Engine {
    /// Changes the retention period of a stream.
    pub(crate) fn retain(&self, way: RetentionChange, request: &Request) -> Result<(), ApiError> {
        let hours = check(request.retention_period_hours)?;
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        self.run(way.operation(), Some(&name), || {
            self.change_stream(&name, |scene| {
                let current = scene.topology.retention_hours;
                way.check(&name, hours, current)?;
                Ok((hours != current).then_some(ChangeKind::Retain { hours }))
            })
        })
    }
}

/// Returns the hours of a request, if they are within the service's bounds.
fn check(hours: Option<i64>) -> Result<u32, ApiError> {
    Constraints::new().present(hours.as_ref(), "retentionPeriodHours").check()?;
    let hours = hours.unwrap_or_default();
    let (least, most) = (limits::RETENTION_MIN_HOURS, limits::RETENTION_MAX_HOURS);
    if hours < i64::from(least) {
        return Err(ApiError::invalid(format!(
            "Minimum allowed retention period is {least} hours. Requested retention period \
             ({hours} hours) is too short."
        )));
    }
    u32::try_from(hours).ok().filter(|hours| *hours <= most).ok_or_else(|| {
        ApiError::invalid(format!(
            "Maximum allowed retention period is {most} hours. Requested retention period \
             ({hours} hours) is too long."
        ))
    })
}
