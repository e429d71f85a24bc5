//! Names of a stream, and the name under which an application stores its rows.
//!
//! A stream in the caller's account and region has two names, the plain one and its ARN. A stream
//! of another account has its ARN only.
//!
//! | the application knows | the rows are stored under                 |
//! |-----------------------|-------------------------------------------|
//! | the given name        | the given name                            |
//! | the other name        | the other name                            |
//! | neither               | the plain name, or the ARN if it has none |

use crate::ids::StreamName;

/// Names of one stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamNames {
    /// Name in the configuration.
    pub given: StreamName,
    /// Other name of the same stream, if there is one.
    pub other: Option<StreamName>,
}

impl StreamNames {
    /// Returns the name under which the rows of the stream are or will be stored. `knows` returns
    /// true for names that the application has rows for.
    pub fn key(&self, knows: impl Fn(&StreamName) -> bool) -> &StreamName {
        let Some(other) = &self.other else { return &self.given };
        let used = [&self.given, other].into_iter().find(|name| knows(name));
        used.unwrap_or(if self.given.is_arn() { other } else { &self.given })
    }

    /// Returns true if `name` is one of the stream's names.
    pub fn contains(&self, name: &StreamName) -> bool {
        self.given == *name || self.other.as_ref() == Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_there_are_used_and_new_ones_lie_under_the_plain_name() {
        let (plain, arn) = ("orders", "arn:aws:kinesis:eu-west-1:123456789012:stream/orders");
        for (given, other, known, key) in [
            (plain, Some(arn), &[][..], plain),
            (arn, Some(plain), &[], plain),
            (arn, None, &[], arn),
            (arn, None, &[plain], arn),
            (plain, Some(arn), &[plain], plain),
            (arn, Some(plain), &[plain], plain),
            (plain, Some(arn), &[arn], arn),
            (arn, Some(plain), &[arn], arn),
            // Rows from before the two names were treated as one stream.
            (plain, Some(arn), &[plain, arn], plain),
            (arn, Some(plain), &[plain, arn], arn),
        ] {
            let names = StreamNames { given: given.into(), other: other.map(Into::into) };
            let found = names.key(|name| known.contains(&name.as_str()));
            assert_eq!(found.as_str(), key, "{given} and {other:?}, known are {known:?}");
        }
    }
}
