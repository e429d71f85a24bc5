//! The bounds of retention.

use crate::constraint::Constraints;
use crate::error::ApiError;
use anabranch_model::limits;

/// The hours of a request, within the service's bounds.
pub(crate) fn check(hours: Option<i64>) -> Result<u32, ApiError> {
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
