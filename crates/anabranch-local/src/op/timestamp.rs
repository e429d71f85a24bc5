//! Timestamps in JSON and in messages.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A time in milliseconds since 1970. In JSON it is seconds with a fraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub u64);

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of this age are below 2^53")]
        out.serialize_f64(self.0 as f64 / 1000.0)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let seconds = f64::deserialize(from)?;
        // The cast saturates: a time before 1970 becomes 1970, and one too large becomes the
        // maximum.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        Ok(Self((seconds * 1000.0).round() as u64))
    }
}

/// Formats a time as the service does in messages: `Thu Jan 22 01:22:02 UTC 2015`.
pub(crate) fn utc_text(ms: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let seconds = ms / 1000;
    let days = seconds / 86_400;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = civil(days);
    let weekday = DAYS[usize::try_from(days % 7).unwrap_or(0)];
    let month = MONTHS[month];
    format!("{weekday} {month} {day:02} {hour:02}:{minute:02}:{second:02} UTC {year}")
}

/// Converts days since 1970 to year, month (from 0) and day of the month (from 1).
fn civil(mut day: u64) -> (u64, usize, u64) {
    let leap = |year: u64| {
        (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400)
    };
    // Skips whole cycles of 400 years first, which bounds the loop below.
    let mut year = 1970 + day / 146_097 * 400;
    day %= 146_097;
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    (year, month, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_the_service_writes_them() {
        for (ms, text) in [
            (0, "Thu Jan 01 00:00:00 UTC 1970"),
            (1_421_889_722_000, "Thu Jan 22 01:22:02 UTC 2015"),
            (1_709_164_800_000, "Thu Feb 29 00:00:00 UTC 2024"),
            (4_107_542_399_000, "Sun Feb 28 23:59:59 UTC 2100"),
        ] {
            assert_eq!(utc_text(ms), text);
        }
    }

    #[test]
    fn milliseconds_survive_json() {
        for (ms, json) in [(1_700_000_000_123, "1700000000.123"), (0, "0.0"), (1_500, "1.5")] {
            assert_eq!(serde_json::to_string(&Timestamp(ms)).unwrap(), json);
            assert_eq!(serde_json::from_str::<Timestamp>(json).unwrap(), Timestamp(ms));
        }
        assert_eq!(serde_json::from_str::<Timestamp>("-5").unwrap(), Timestamp(0));
        assert_eq!(serde_json::from_str::<Timestamp>("1700000000").unwrap().0, 1_700_000_000_000);
    }
}
