//! Time specifications: `trim`, `latest`, `10m`, `2026-05-01T12:00:00Z`.

use anabranch::clock::Clock;
use anabranch_model::position::StartPosition;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in the history of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeSpec {
    /// The oldest record.
    Trim,
    /// Records that arrive from now on.
    Latest,
    /// An age.
    Ago(Duration),
    /// Milliseconds since 1970.
    At(u64),
}

impl FromStr for TimeSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "trim" | "trim_horizon" => return Ok(Self::Trim),
            "latest" | "now" => return Ok(Self::Latest),
            _ => {}
        }
        if let Ok(ago) = humantime::parse_duration(text) {
            return Ok(Self::Ago(ago));
        }
        let day = format!("{text}T00:00:00Z");
        humantime::parse_rfc3339_weak(text)
            .or_else(|_| humantime::parse_rfc3339(&day))
            .map(|time| Self::At(millis(time)))
            .map_err(|_| {
                "expected trim, latest, an age such as 10m or 2h 30m, or a time in UTC such as \
                 2026-05-01, 2026-05-01T12:00:00 or 2026-05-01T12:00:00.250Z"
                    .to_owned()
            })
    }
}

fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl TimeSpec {
    /// Returns the start position of an application.
    pub(crate) fn start(self) -> StartPosition {
        match self {
            Self::Trim => StartPosition::TrimHorizon,
            Self::Latest => StartPosition::Latest,
            Self::At(ms) => StartPosition::AtTimestamp(ms),
            Self::Ago(ago) => {
                let ago_ms = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
                StartPosition::AtTimestamp(Clock::machine().wall_ms().saturating_sub(ago_ms))
            }
        }
    }
}

/// Formats a time as RFC 3339 with milliseconds.
pub(crate) fn text(ms: u64) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(ms));
    // The formatter supports years up to 9999.
    let time = time.filter(|_| ms < 253_402_300_800_000);
    time.map_or_else(|| ms.to_string(), |time| humantime::format_rfc3339_millis(time).to_string())
}

/// Formats a duration with its two largest units.
pub(crate) fn span(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{seconds}.{} s", ms % 1_000 / 100),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let check = |text: &str, expected: Option<TimeSpec>| {
            assert_eq!(text.parse().ok(), expected, "{text}");
        };
        check("trim", Some(TimeSpec::Trim));
        check("LATEST", Some(TimeSpec::Latest));
        check("10m", Some(TimeSpec::Ago(Duration::from_mins(10))));
        check("2h 30m", Some(TimeSpec::Ago(Duration::from_mins(150))));
        check("1970-01-02", Some(TimeSpec::At(86_400_000)));
        check("1970-01-01T00:00:01.5Z", Some(TimeSpec::At(1_500)));
        check("1970-01-01 00:01:00", Some(TimeSpec::At(60_000)));
        check("yesterday", None);
        check("", None);
        check("2026-13-01", None);
    }

    #[test]
    fn times_and_spans_are_printed_for_people() {
        assert_eq!(text(1_500), "1970-01-01T00:00:01.500Z");
        assert_eq!(text(u64::MAX), u64::MAX.to_string());
        for (ms, expected) in [
            (0, "0 ms"),
            (2_345, "2.3 s"),
            (61_000, "1 min 1 s"),
            (3_600_000, "1 h 0 min"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(span(ms), expected);
        }
    }
}
