//! Names of streams and ids of shards.

use crate::record::PartitionKey;
use std::fmt;
use std::sync::Arc;

/// Name of a stream, as the application distinguishes its streams. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamName(Arc<str>);

impl StreamName {
    /// Returns the name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the name is an ARN.
    pub fn is_arn(&self) -> bool {
        is_arn(&self.0)
    }

    /// Returns the plain name in a stream ARN. Returns `None` for a plain name, and for an ARN of
    /// another resource.
    pub fn in_arn(&self) -> Option<Self> {
        let resource = self.is_arn().then(|| self.0.splitn(6, ':').nth(5)).flatten()?;
        let name = resource.strip_prefix("stream/")?;
        (!name.is_empty() && !name.contains('/')).then(|| name.into())
    }
}

/// Returns true if a text is an ARN: `arn:partition:service:region:account:resource`.
pub fn is_arn(text: &str) -> bool {
    text.starts_with("arn:")
}

impl From<&str> for StreamName {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl From<String> for StreamName {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Id of a shard, such as `shardId-000000000012`. Cheap to clone: every record outcome contains
/// one, so an id of this form is stored inline, like a short partition key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(PartitionKey);

impl ShardId {
    /// Returns the id that Kinesis gives to the `index`-th shard of a stream.
    pub fn from_index(index: u32) -> Self {
        Self(format!("shardId-{index:012}").into())
    }

    /// Returns the number in a Kinesis shard id, or `None` for ids of another form (DynamoDB
    /// Streams).
    pub fn index(&self) -> Option<u32> {
        let digits = self.as_str().strip_prefix("shardId-")?;
        let plain = digits.len() == 12 && digits.bytes().all(|b| b.is_ascii_digit());
        if plain { digits.parse().ok() } else { None }
    }

    /// Returns the id as the service writes it.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl From<&str> for ShardId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl From<String> for ShardId {
    fn from(id: String) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_name_is_read_from_the_arn_of_a_stream_only() {
        for (text, name) in [
            ("arn:aws:kinesis:us-east-1:123456789012:stream/orders", Some("orders")),
            ("arn:aws-cn:kinesis:cn-north-1:123456789012:stream/a.b-c_d", Some("a.b-c_d")),
            ("arn:aws:kinesis:us-east-1:123456789012:stream/orders/consumer/c:1", None),
            ("arn:aws:kinesis:us-east-1:123456789012:stream/", None),
            ("arn:aws:dynamodb:us-east-1:123456789012:table/orders", None),
            ("arn:aws:kinesis", None),
            ("orders", None),
        ] {
            let found = StreamName::from(text).in_arn();
            assert_eq!(found.as_ref().map(StreamName::as_str), name, "{text}");
        }
    }

    #[test]
    fn an_index_is_read_from_kinesis_ids_only() {
        for (id, index) in [
            ("shardId-000000000012", Some(12)),
            ("shardId-004294967295", Some(u32::MAX)),
            ("shardId-999999999999", None),
            ("shardId-00000001414576573621-f55eea83", None),
            ("shardId-+00000000012", None),
            ("shard-1", None),
            ("", None),
        ] {
            assert_eq!(ShardId::from(id).index(), index, "{id}");
        }
        assert_eq!(ShardId::from_index(12).as_str(), "shardId-000000000012");
    }
}
