//! Identifiers of streams in a KCL multi-stream table.

use std::fmt;
use std::str::FromStr;

/// A stream as KCL's multi-stream tables name it: `account:stream:creation time`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KclStreamId {
    account: String,
    stream: String,
    created_s: u64,
}

/// Error of parsing a stream identifier of a multi-stream table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a stream of a multi-stream table: it must read \
     `account number:stream name:creation time in seconds`"
)]
pub struct ParseKclStreamIdError(String);

impl KclStreamId {
    /// Creates the identifier of the stream `stream` of `account`, created `created_s` seconds
    /// after 1970. Fails if the account is not a number, or the stream's name is empty or contains
    /// a colon.
    pub fn new(
        account: impl Into<String>,
        stream: impl Into<String>,
        created_s: u64,
    ) -> Result<Self, ParseKclStreamIdError> {
        let id = Self { account: account.into(), stream: stream.into(), created_s };
        let number = !id.account.is_empty() && id.account.bytes().all(|b| b.is_ascii_digit());
        let named = !id.stream.is_empty() && !id.stream.contains(':');
        if number && named { Ok(id) } else { Err(ParseKclStreamIdError(id.to_string())) }
    }

    /// Returns the account that the stream belongs to.
    pub fn account(&self) -> &str {
        &self.account
    }

    /// Returns the stream's name.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// Returns the creation time, in seconds since 1970.
    pub fn created_s(&self) -> u64 {
        self.created_s
    }
}

impl FromStr for KclStreamId {
    type Err = ParseKclStreamIdError;

    fn from_str(text: &str) -> Result<Self, ParseKclStreamIdError> {
        let refused = || ParseKclStreamIdError(text.chars().take(200).collect());
        let mut parts = text.split(':');
        let (Some(account), Some(stream), Some(created), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(refused());
        };
        let created = created.parse().map_err(|_| refused())?;
        Self::new(account, stream, created)
    }
}

impl fmt::Display for KclStreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.account, self.stream, self.created_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_as_kcl_writes_them() {
        for (text, good) in [
            ("123456789012:orders:1700000000", true),
            ("123456789012:orders.v2_x-y:0", true),
            ("orders", false),
            ("abc:orders:1", false),
            (":orders:1", false),
            ("1::1", false),
            ("1:orders:x", false),
            ("1:orders:1:shardId-000000000000", false),
        ] {
            let read = text.parse::<KclStreamId>();
            assert_eq!(read.is_ok(), good, "{text}");
            assert!(read.is_ok_and(|id| id.to_string() == text) || !good, "{text}");
        }
    }
}
