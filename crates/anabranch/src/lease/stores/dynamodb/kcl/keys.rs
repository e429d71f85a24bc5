//! Lease keys of KCL's table: a shard, or a stream and a shard.

use super::row;
use super::stream_id::KclStreamId;
use crate::lease::stores::dynamodb::item::{AttributeMap, ItemFields, MalformedItem, text};
use crate::lease::stores::dynamodb::provision::LEASE_KEY;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::LeaseKey;
use std::fmt;
use std::sync::Arc;

/// Maps the application's name of a stream to KCL's.
pub(crate) type StreamIdentifier = Arc<dyn Fn(&StreamName) -> Option<KclStreamId> + Send + Sync>;

/// The streams of the table.
#[derive(Clone)]
pub(crate) enum KclStreams {
    /// One stream: the key is the shard.
    Single,
    /// Several streams: the key is the stream's id and the shard.
    Multi(StreamIdentifier),
}

/// A stream of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StreamOfTable {
    /// The application's name of the stream.
    pub(crate) name: StreamName,
    /// KCL's id of the stream, if the table has several.
    pub(crate) id: Option<String>,
}

/// Returns a key that may or may not exist, for a read that only checks whether the table exists.
pub(crate) fn any_key() -> AttributeMap {
    AttributeMap::from([(LEASE_KEY.into(), text("shardId-000000000000"))])
}

impl KclStreams {
    /// Returns the stream of that name, or `None` if the table has several and this one has no id.
    pub(crate) fn stream(&self, name: &StreamName) -> Option<StreamOfTable> {
        let id = match self {
            Self::Single => None,
            Self::Multi(identify) => Some(identify(name)?.to_string()),
        };
        Some(StreamOfTable { name: name.clone(), id })
    }
}

impl KclStreams {
    /// Returns KCL's id of the stream that the row belongs to, if the table has several streams.
    pub(crate) fn of_row<'a>(&self, item: &'a AttributeMap) -> Option<&'a str> {
        match self {
            Self::Single => None,
            Self::Multi(_) => Some(lease_key(item).rsplit_once(':').map_or("", |(id, _)| id)),
        }
    }
}

fn lease_key(item: &AttributeMap) -> &str {
    ItemFields(item).text(LEASE_KEY).ok().flatten().unwrap_or_default()
}

impl fmt::Debug for KclStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Self::Single) { "Single" } else { "Multi" })
    }
}

impl StreamOfTable {
    /// Returns the key of a shard's row.
    pub(crate) fn key(&self, of: &LeaseKey) -> AttributeMap {
        AttributeMap::from([(LEASE_KEY.into(), text(self.lease_key(of.shard.as_str())))])
    }

    fn lease_key(&self, shard: &str) -> String {
        match &self.id {
            None => shard.to_owned(),
            Some(id) => format!("{id}:{shard}"),
        }
    }

    /// Returns true if the row has the key of a lease of this stream. In a table for one stream all
    /// rows have.
    pub(crate) fn has(&self, item: &AttributeMap) -> bool {
        self.shard_of(item).is_some()
    }

    /// Returns the shard that the key of a row names, whatever its other attributes say.
    pub(crate) fn shard_of(&self, item: &AttributeMap) -> Option<ShardId> {
        let key = lease_key(item);
        match &self.id {
            None => Some(key.into()),
            Some(id) => Some(key.strip_prefix(id.as_str())?.strip_prefix(':')?.into()),
        }
    }

    /// Returns the lease key of a row of this stream.
    pub(crate) fn read_key(&self, item: &AttributeMap) -> Result<LeaseKey, MalformedItem> {
        let lease_key = ItemFields(item).need_text(LEASE_KEY)?;
        let shard = match &self.id {
            None => lease_key,
            Some(_) => ItemFields(item).need_text(row::SHARD_ID)?,
        };
        if self.lease_key(shard) != lease_key {
            let why = format!("`{}` is {shard}, which does not match `{LEASE_KEY}`", row::SHARD_ID);
            return Err(MalformedItem(why));
        }
        Ok(LeaseKey { stream: self.name.clone(), shard: shard.into() })
    }
}
