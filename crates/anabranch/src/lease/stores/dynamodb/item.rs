//! Items of DynamoDB, read attribute by attribute.

use anabranch_model::ids::ShardId;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use bytes::Bytes;
use std::collections::HashMap;
use std::fmt;

/// An item, or the key of one: attributes by name.
pub(in crate::lease) type AttributeMap = HashMap<String, AttributeValue>;

/// Reason why an item can't be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::lease) struct MalformedItem(pub(in crate::lease) String);

impl fmt::Display for MalformedItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns a string attribute.
pub(in crate::lease) fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

/// Returns a number attribute.
pub(in crate::lease) fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// Returns a binary attribute.
pub(in crate::lease) fn binary(value: &Bytes) -> AttributeValue {
    AttributeValue::B(Blob::new(value.to_vec()))
}

/// Returns a list of shard names, in the given order.
pub(in crate::lease) fn shard_list(shards: &[ShardId]) -> AttributeValue {
    AttributeValue::L(shards.iter().map(|shard| text(shard.as_str())).collect())
}

/// Returns a set of shard names, without duplicates. `None` if it is empty, since DynamoDB has no
/// empty sets.
pub(in crate::lease) fn shard_set(shards: &[ShardId]) -> Option<AttributeValue> {
    let mut names: Vec<String> = shards.iter().map(|shard| shard.as_str().to_owned()).collect();
    names.sort_unstable();
    names.dedup();
    (!names.is_empty()).then_some(AttributeValue::Ss(names))
}

/// The attributes of an item. NULL counts as absent, because some clients write it for absent
/// values.
#[derive(Clone, Copy)]
pub(in crate::lease) struct ItemFields<'a>(pub(in crate::lease) &'a AttributeMap);

impl<'a> ItemFields<'a> {
    fn value(self, name: &str) -> Option<&'a AttributeValue> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Returns true if the attribute exists and is not NULL.
    pub(in crate::lease) fn has(self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// Reads a string that may be absent.
    pub(in crate::lease) fn text(self, name: &str) -> Result<Option<&'a str>, MalformedItem> {
        match self.value(name) {
            None => Ok(None),
            Some(AttributeValue::S(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(name, "a string", other)),
        }
    }

    /// Reads a required string.
    pub(in crate::lease) fn need_text(self, name: &str) -> Result<&'a str, MalformedItem> {
        self.text(name)?.ok_or_else(|| missing(name))
    }

    /// Reads a whole number that may be absent.
    pub(in crate::lease) fn number(self, name: &str) -> Result<Option<u64>, MalformedItem> {
        match self.value(name) {
            None => Ok(None),
            Some(AttributeValue::N(digits)) => match digits.parse() {
                Ok(value) => Ok(Some(value)),
                Err(_) => Err(MalformedItem(format!("`{name}` is {digits}, not a whole number"))),
            },
            Some(other) => Err(wrong(name, "a number", other)),
        }
    }

    /// Reads a required whole number.
    pub(in crate::lease) fn need_number(self, name: &str) -> Result<u64, MalformedItem> {
        self.number(name)?.ok_or_else(|| missing(name))
    }

    /// Reads bytes that may be absent.
    pub(in crate::lease) fn binary(self, name: &str) -> Result<Option<Bytes>, MalformedItem> {
        match self.value(name) {
            None => Ok(None),
            Some(AttributeValue::B(blob)) => Ok(Some(Bytes::copy_from_slice(blob.as_ref()))),
            Some(other) => Err(wrong(name, "binary", other)),
        }
    }

    /// Reads the strings of a list, in order. Empty if the attribute is absent.
    pub(in crate::lease) fn list(self, name: &str) -> Result<Vec<&'a str>, MalformedItem> {
        let Some(value) = self.value(name) else { return Ok(Vec::new()) };
        let AttributeValue::L(values) = value else { return Err(wrong(name, "a list", value)) };
        let strings = values.iter().map(|value| match value {
            AttributeValue::S(text) => Ok(text.as_str()),
            other => Err(wrong(name, "a list of strings", other)),
        });
        strings.collect()
    }

    /// Reads the shards of a set, ordered by name. Empty if the attribute is absent.
    pub(in crate::lease) fn shard_set(self, name: &str) -> Result<Vec<ShardId>, MalformedItem> {
        let Some(value) = self.value(name) else { return Ok(Vec::new()) };
        let AttributeValue::Ss(names) = value else {
            return Err(wrong(name, "a set of strings", value));
        };
        let mut shards: Vec<ShardId> = names.iter().map(|name| name.as_str().into()).collect();
        shards.sort_unstable();
        Ok(shards)
    }
}

fn missing(name: &str) -> MalformedItem {
    MalformedItem(format!("`{name}` is missing"))
}

fn wrong(name: &str, wanted: &str, got: &AttributeValue) -> MalformedItem {
    let got = match got {
        AttributeValue::S(_) => "a string",
        AttributeValue::N(_) => "a number",
        AttributeValue::B(_) => "binary",
        AttributeValue::Ss(_) | AttributeValue::Ns(_) | AttributeValue::Bs(_) => "a set",
        AttributeValue::L(_) => "a list",
        AttributeValue::M(_) => "a map",
        AttributeValue::Bool(_) => "a boolean",
        _ => "of another type",
    };
    MalformedItem(format!("`{name}` is {got}, not {wanted}"))
}
