//! The service's constraints on single values, and its messages for a violated one.

use crate::engine::StreamRef;
use crate::error::ApiError;

/// The pattern for names of streams, shards and consumers, as the service words it.
const NAME_PATTERN: &str = "[a-zA-Z0-9_.-]+";
const STREAM_ARN_PATTERN: &str = r"arn:aws.*:kinesis:.*:\d{12}:stream/\S+";
const NUMBER_PATTERN: &str = r"0|([1-9]\d{0,128})";
const HASH_KEY_PATTERN: &str = r"0|([1-9]\d{0,38})";
/// Maximum number of violated constraints in one message. The service reports no more.
const MOST_REPORTED: usize = 10;

/// Collects the violated constraints of a request.
#[derive(Debug, Default)]
pub(crate) struct Constraints(Vec<String>);

impl Constraints {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Records that `value` at `field` violates a constraint.
    pub(crate) fn add(&mut self, value: &str, field: &str, words: &str) -> &mut Self {
        if self.0.len() < MOST_REPORTED {
            let text = format!("Value {value} at '{field}' failed to satisfy constraint: {words}");
            self.0.push(text);
        }
        self
    }

    fn quoted(&mut self, value: &str, field: &str, words: &str) {
        self.add(&format!("'{value}'"), field, words);
    }

    /// Requires a value.
    pub(crate) fn present<T>(&mut self, value: Option<&T>, field: &str) -> &mut Self {
        if value.is_none() {
            self.add("null", field, "Member must not be null");
        }
        self
    }

    /// Requires a name of 1 to 128 letters, digits, `_`, `.` and `-`.
    pub(crate) fn name(&mut self, value: Option<&str>, field: &str) -> &mut Self {
        self.present(value.as_ref(), field);
        self.optional_name(value, field)
    }

    /// Checks a name of 1 to 128 letters, digits, `_`, `.` and `-`, if it is given.
    pub(crate) fn optional_name(&mut self, value: Option<&str>, field: &str) -> &mut Self {
        let Some(value) = value else { return self };
        if value.is_empty() || !value.bytes().all(is_name_byte) {
            let words = format!("Member must satisfy regular expression pattern: {NAME_PATTERN}");
            self.quoted(value, field, &words);
        }
        self.length(Some(value), field, 1, 128)
    }

    /// Checks that a text has `least` to `most` characters, if it is given.
    pub(crate) fn length(
        &mut self,
        value: Option<&str>,
        field: &str,
        least: usize,
        most: usize,
    ) -> &mut Self {
        let Some(value) = value else { return self };
        // Counts characters only where the number of bytes does not decide.
        let length = if value.len() <= most && value.len() > least {
            value.len()
        } else {
            value.chars().count()
        };
        if length < least {
            let words = format!("Member must have length greater than or equal to {least}");
            self.quoted(value, field, &words);
        }
        if length > most {
            let words = format!("Member must have length less than or equal to {most}");
            self.quoted(value, field, &words);
        }
        self
    }

    /// Checks that a number is in `least..=most`, if it is given.
    pub(crate) fn within(
        &mut self,
        value: Option<i64>,
        field: &str,
        least: i64,
        most: i64,
    ) -> &mut Self {
        let Some(value) = value else { return self };
        if value < least {
            let words = format!("Member must have value greater than or equal to {least}");
            self.quoted(&value.to_string(), field, &words);
        }
        if value > most {
            let words = format!("Member must have value less than or equal to {most}");
            self.quoted(&value.to_string(), field, &words);
        }
        self
    }

    /// Checks that a value is one of `values`, if it is given.
    pub(crate) fn one_of(
        &mut self,
        value: Option<&str>,
        field: &str,
        values: &[&str],
    ) -> &mut Self {
        if let Some(value) = value.filter(|value| !values.contains(value)) {
            let set = values.join(", ");
            self.quoted(value, field, &format!("Member must satisfy enum value set: [{set}]"));
        }
        self
    }

    /// Checks a sequence number, if it is given.
    pub(crate) fn sequence_number(&mut self, value: Option<&str>, field: &str) -> &mut Self {
        self.digits(value, field, 129, NUMBER_PATTERN)
    }

    /// Checks a hash key, if it is given.
    pub(crate) fn hash_key(&mut self, value: Option<&str>, field: &str) -> &mut Self {
        self.digits(value, field, 39, HASH_KEY_PATTERN)
    }

    fn digits(
        &mut self,
        value: Option<&str>,
        field: &str,
        most: usize,
        pattern: &str,
    ) -> &mut Self {
        let Some(value) = value else { return self };
        if !is_plain_number(value, most) {
            let words = format!("Member must satisfy regular expression pattern: {pattern}");
            self.quoted(value, field, &words);
        }
        self
    }

    /// Returns the error that lists every violated constraint, if there is one.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        let count = self.0.len();
        if count == 0 {
            return Ok(());
        }
        let plural = if count == 1 { "" } else { "s" };
        let broken = self.0.join("; ");
        let text = format!("{count} validation error{plural} detected: {broken}");
        Err(ApiError::validation(text))
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}

/// Returns true if `text` is a decimal number of at most `most` digits without leading zeros.
pub(crate) fn is_plain_number(text: &str, most: usize) -> bool {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits && text.len() <= most && (text.len() == 1 || !text.starts_with('0'))
}

/// Checks the name of a stream, if it is given.
pub(crate) fn stream_ref(stream: &StreamRef<'_>) -> Result<(), ApiError> {
    match stream.name.as_deref() {
        None => Ok(()),
        name => Constraints::new().optional_name(name, "streamName").check(),
    }
}

/// Returns the error for a text that is not a stream ARN.
pub(crate) fn bad_arn(arn: &str) -> ApiError {
    let words = format!("Member must satisfy regular expression pattern: {STREAM_ARN_PATTERN}");
    let mut constraints = Constraints::new();
    constraints.quoted(arn, "streamARN", &words);
    constraints.check().expect_err("a constraint was just broken")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(broken: impl FnOnce(&mut Constraints), expected: &str) {
        let mut constraints = Constraints::new();
        broken(&mut constraints);
        let error = constraints.check().map_or_else(|error| error.message, |()| String::new());
        assert_eq!(error, expected);
    }

    #[test]
    fn broken_constraints_are_told_in_the_services_words() {
        check(
            |c| {
                c.name(Some("orders"), "streamName");
            },
            "",
        );
        check(
            |c| {
                c.name(None, "streamName");
            },
            "1 validation error detected: Value null at 'streamName' failed to satisfy \
             constraint: Member must not be null",
        );
        check(
            |c| {
                c.name(Some(""), "streamName");
            },
            "2 validation errors detected: Value '' at 'streamName' failed to satisfy constraint: \
             Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+; Value '' at \
             'streamName' failed to satisfy constraint: Member must have length greater than or \
             equal to 1",
        );
        check(
            |c| {
                c.within(Some(0), "limit", 1, 10_000);
            },
            "1 validation error detected: Value '0' at 'limit' failed to satisfy constraint: \
             Member must have value greater than or equal to 1",
        );
        check(
            |c| {
                c.hash_key(Some("01"), "newStartingHashKey");
            },
            "1 validation error detected: Value '01' at 'newStartingHashKey' failed to satisfy \
             constraint: Member must satisfy regular expression pattern: 0|([1-9]\\d{0,38})",
        );
    }

    #[test]
    fn lengths_count_characters_and_not_bytes() {
        check(
            |c| {
                c.length(Some(&"ж".repeat(256)), "partitionKey", 1, 256);
            },
            "",
        );
        let long = "ж".repeat(257);
        let mut constraints = Constraints::new();
        constraints.length(Some(&long), "partitionKey", 1, 256);
        assert!(constraints.check().is_err());
    }
}
