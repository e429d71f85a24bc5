//! The names of one stream, and the one under which an application keeps its rows.
//!
//! A stream of the caller's own account and region has two names, the plain one and its ARN. One of
//! another account has its ARN only.
//!
//! | the application knows | the rows lie under                        |
//! |-----------------------|-------------------------------------------|
//! | the given name        | the given name                            |
//! | the other name        | the other name                            |
//! | neither               | the plain name, or the ARN if it has none |

use crate::ids::StreamName;

/// The names of one stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamNames {
    /// The name that the configuration gives.
    pub given: StreamName,
    /// The name that means the same stream to the service, if there is one.
    pub other: Option<StreamName>,
}

impl StreamNames {
    /// The name that the rows of the stream lie under, or will lie under.
    pub fn key(&self, knows: impl Fn(&StreamName) -> bool) -> &StreamName {
        let Some(other) = &self.other else { return &self.given };
        let used = [&self.given, other].into_iter().find(|name| knows(name));
        used.unwrap_or(if self.given.is_arn() { other } else { &self.given })
    }

    /// Whether a name is one of them.
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
            // Rows from before the two names were one stream.
            (plain, Some(arn), &[plain, arn], plain),
            (arn, Some(plain), &[plain, arn], arn),
        ] {
            let names = StreamNames { given: given.into(), other: other.map(Into::into) };
            let found = names.key(|name| known.contains(&name.as_str()));
            assert_eq!(found.as_str(), key, "{given} and {other:?}, known are {known:?}");
        }
    }
}
