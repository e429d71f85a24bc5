//! Conversions between the durations and times of the public API and the milliseconds of the model.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the whole milliseconds of `duration`, at most `u64::MAX`.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time `ms` milliseconds after 1970, or 1970 if the platform cannot represent it.
pub(crate) fn system_time(ms: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(UNIX_EPOCH)
}
