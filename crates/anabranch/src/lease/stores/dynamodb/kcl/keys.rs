//! Lease keys of KCL's table: a shard, or a stream and a shard.

use super::row;
use super::stream_id::KclStreamId;
use crate::lease::stores::dynamodb::item::{AttributeMap, ItemFields, MalformedItem, text};
use crate::lease::stores::dynamodb::provision::LEASE_KEY;
use anabranch_model::ids::{ShardId, StreamName};
use anabranch_model::lease::LeaseKey;
use std::fmt;
use std::sync::Arc;

/// How an application's name for a stream becomes KCL's.
pub(crate) type StreamIdentifier = Arc<dyn Fn(&StreamName) -> Option<KclStreamId> + Send + Sync>;

/// Which streams the table is for.
#[derive(Clone)]
pub(crate) enum KclStreams {
    /// One: the key is the shard.
    Single,
    /// Several: the key is the stream's id and the shard.
    Multi(StreamIdentifier),
}

/// A stream of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StreamOfTable {
    /// The application's name for it.
    pub(crate) name: StreamName,
    /// KCL's, where the table has several.
    pub(crate) id: Option<String>,
}

/// A key that the table may have or not: for a read that only asks whether the table is there.
pub(crate) fn any_key() -> AttributeMap {
    AttributeMap::from([(LEASE_KEY.into(), text("shardId-000000000000"))])
}

impl KclStreams {
    /// The stream of that name. `None` if the table has several and this one has no id.
    pub(crate) fn stream(&self, name: &StreamName) -> Option<StreamOfTable> {
        let id = match self {
            Self::Single => None,
            Self::Multi(identify) => Some(identify(name)?.to_string()),
        };
        Some(StreamOfTable { name: name.clone(), id })
    }
}

impl KclStreams {
    /// KCL's id of the stream whose lease has this row's key, where the table has several streams.
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
    /// The key of a shard's row.
    pub(crate) fn key(&self, of: &LeaseKey) -> AttributeMap {
        AttributeMap::from([(LEASE_KEY.into(), text(self.lease_key(of.shard.as_str())))])
    }

    fn lease_key(&self, shard: &str) -> String {
        match &self.id {
            None => shard.to_owned(),
            Some(id) => format!("{id}:{shard}"),
        }
    }

    /// Whether a row has the key of a lease of this stream. On a table for one stream all have.
    pub(crate) fn has(&self, item: &AttributeMap) -> bool {
        self.shard_of(item).is_some()
    }

    /// The shard that the key of a row names, whatever else the row says.
    pub(crate) fn shard_of(&self, item: &AttributeMap) -> Option<ShardId> {
        let key = lease_key(item);
        match &self.id {
            None => Some(key.into()),
            Some(id) => Some(key.strip_prefix(id.as_str())?.strip_prefix(':')?.into()),
        }
    }

    /// Which lease a row of this stream is.
    pub(crate) fn read_key(&self, item: &AttributeMap) -> Result<LeaseKey, MalformedItem> {
        let lease_key = ItemFields(item).need_text(LEASE_KEY)?;
        let shard = match &self.id {
            None => lease_key,
            Some(_) => ItemFields(item).need_text(row::SHARD_ID)?,
        };
        if self.lease_key(shard) != lease_key {
            let why = format!("`{}` is {shard}, and `{LEASE_KEY}` says otherwise", row::SHARD_ID);
            return Err(MalformedItem(why));
        }
        Ok(LeaseKey { stream: self.name.clone(), shard: shard.into() })
    }
}
