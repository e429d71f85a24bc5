//! Conversions between the durations of the public API and the milliseconds of the model.

use std::time::Duration;

/// Returns the whole milliseconds of `duration`, at most `u64::MAX`.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
