//! `ListShards`: the shards of a stream, filtered, page by page.
//!
//! The token carries the stream, the filter and the position of the first call, so the filter stays
//! the same on all pages. Shards that open between two pages have higher ids than those listed.
//!
//! Differs from AWS: `StreamCreationTimestamp` is accepted and ignored.

use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::fault::FaultSite;
use crate::lifecycle::Status;
use crate::op::{Operation, ShardDescription, StreamTarget, Timestamp};
use crate::stream::{ShardState, Topology};
use anabranch_model::limits;
use serde::{Deserialize, Serialize};

/// Request of `ListShards`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    pub next_token: Option<String>,
    pub exclusive_start_shard_id: Option<String>,
    pub max_results: Option<i64>,
    pub stream_creation_timestamp: Option<Timestamp>,
    pub shard_filter: Option<ShardFilter>,
}

/// Selects the shards to list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct ShardFilter {
    #[serde(rename = "Type")]
    pub filter_type: Option<String>,
    pub shard_id: Option<String>,
    pub timestamp: Option<Timestamp>,
}

/// Reply to `ListShards`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Reply {
    pub shards: Vec<ShardDescription>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// The stream and filter of a list, and the position to continue from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ListCursor {
    stream: String,
    stream_id: u64,
    after: Option<String>,
    keep: ShardSelector,
}

/// A validated filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum ShardSelector {
    /// All shards that are listed.
    All,
    /// Shards with a higher id than the given one.
    After(String),
    /// Open shards.
    Open,
    /// Shards that were open at a time, in milliseconds since 1970.
    OpenAt(u64),
    /// Shards that were open at a time or later, in milliseconds since 1970.
    OpenSince(u64),
    /// Shards that were open at the trim horizon.
    OpenAtHorizon,
    /// Shards that were open at the trim horizon or later.
    OpenSinceHorizon,
}

impl Engine {
    /// Lists the shards of a stream.
    pub fn list_shards(&self, request: &Request) -> Result<Reply, ApiError> {
        check(request)?;
        let cursor = match &request.next_token {
            Some(token) => self.resume(request, token)?,
            None => self.begin(request)?,
        };
        let most = request.max_results.and_then(|most| usize::try_from(most).ok());
        let most = most.unwrap_or(limits::LIST_SHARDS_DEFAULT_RESULTS);
        let name = cursor.stream.clone();
        let site = FaultSite { operation: Operation::ListShards, stream: Some(&name), shards: &[] };
        self.run_at(site, || {
            let mut reply = self.shards_page(cursor, most)?;
            if reply.next_token.is_none() && self.faults().tears_list(site) {
                reply.shards.pop();
            }
            Ok(reply)
        })
    }

    fn begin(&self, request: &Request) -> Result<ListCursor, ApiError> {
        let target = request.stream.as_ref();
        let stream = self.find(&target)?;
        Ok(ListCursor {
            stream: stream.name.clone(),
            stream_id: stream.id,
            after: request.exclusive_start_shard_id.clone(),
            keep: keep(request.shard_filter.as_ref())?,
        })
    }

    fn resume(&self, request: &Request, token: &str) -> Result<ListCursor, ApiError> {
        let named = request.stream != StreamTarget::default();
        if named || request.exclusive_start_shard_id.is_some() {
            let with = if named { "StreamName" } else { "ExclusiveStartShardId" };
            let text = format!("NextToken and {with} cannot be provided together.");
            return Err(ApiError::invalid(text));
        }
        let state = self.list_token(Operation::ListShards, token)?;
        serde_json::from_str(&state).map_err(|_| ApiError::invalid("Invalid NextToken."))
    }

    /// Returns the name of the stream that a token belongs to.
    pub(crate) fn listed_stream(&self, token: &str) -> Option<String> {
        let state = self.list_token(Operation::ListShards, token).ok()?;
        serde_json::from_str::<ListCursor>(&state).ok().map(|cursor| cursor.stream)
    }

    fn shards_page(&self, mut cursor: ListCursor, most: usize) -> Result<Reply, ApiError> {
        let stream = self.find_by_name(&cursor.stream)?;
        if stream.id != cursor.stream_id {
            return Err(self.stream_not_found(&cursor.stream));
        }
        let now_ms = self.now_ms();
        let topology = stream.read();
        match topology.status(now_ms) {
            None => return Err(self.stream_not_found(&cursor.stream)),
            Some(Status::Creating) => {
                return Err(self.not_active(&cursor.stream, Status::Creating));
            }
            Some(_) => {}
        }
        let after = cursor.after.take();
        let mut rest = topology.shards.iter().filter(|state| {
            after.as_deref().is_none_or(|id| state.shard.id.as_str() > id)
                && topology.is_listed(state, now_ms)
                && cursor.keep.holds(&topology, state, now_ms)
        });
        let page = rest.by_ref().take(most);
        let shards: Vec<_> = page.map(|state| topology.describe(state)).collect();
        let more = rest.next().is_some();
        let next_token = more.then(|| {
            cursor.after = shards.last().map(|shard| shard.shard_id.clone());
            let state = serde_json::to_string(&cursor).expect("a cursor is plain data");
            self.new_list_token(Operation::ListShards, &state)
        });
        Ok(Reply { shards, next_token })
    }
}

fn check(request: &Request) -> Result<(), ApiError> {
    let filter = request.shard_filter.as_ref();
    let mut constraints = Constraints::new();
    constraints
        .optional_name(request.exclusive_start_shard_id.as_deref(), "exclusiveStartShardId")
        .within(request.max_results, "maxResults", 1, 10_000)
        .length(request.next_token.as_deref(), "nextToken", 1, 1_048_576);
    if let Some(filter) = filter {
        constraints
            .present(filter.filter_type.as_ref(), "shardFilter.type")
            .one_of(filter.filter_type.as_deref(), "shardFilter.type", FILTER_TYPES)
            .optional_name(filter.shard_id.as_deref(), "shardFilter.shardId");
    }
    constraints.check()?;
    if request.next_token.is_none() && request.stream == StreamTarget::default() {
        let text = "Either NextToken or StreamName should be provided.";
        return Err(ApiError::invalid(text));
    }
    Ok(())
}

const FILTER_TYPES: &[&str] = &[
    "AFTER_SHARD_ID",
    "AT_TRIM_HORIZON",
    "FROM_TRIM_HORIZON",
    "AT_LATEST",
    "AT_TIMESTAMP",
    "FROM_TIMESTAMP",
];

fn keep(filter: Option<&ShardFilter>) -> Result<ShardSelector, ApiError> {
    let Some(filter) = filter else { return Ok(ShardSelector::All) };
    let kind = filter.filter_type.as_deref().unwrap_or_default();
    let missing = |what: &str| {
        ApiError::invalid(format!("{what} must be specified for a ShardFilter of type {kind}."))
    };
    match kind {
        "AFTER_SHARD_ID" => {
            let id = filter.shard_id.clone().ok_or_else(|| missing("ShardId"))?;
            Ok(ShardSelector::After(id))
        }
        "AT_TRIM_HORIZON" => Ok(ShardSelector::OpenAtHorizon),
        "FROM_TRIM_HORIZON" => Ok(ShardSelector::OpenSinceHorizon),
        "AT_LATEST" => Ok(ShardSelector::Open),
        "AT_TIMESTAMP" | "FROM_TIMESTAMP" => {
            let at = filter.timestamp.ok_or_else(|| missing("Timestamp"))?.0;
            Ok(if kind == "AT_TIMESTAMP" {
                ShardSelector::OpenAt(at)
            } else {
                ShardSelector::OpenSince(at)
            })
        }
        _ => Ok(ShardSelector::All),
    }
}

impl ShardSelector {
    fn holds(&self, topology: &Topology, state: &ShardState, now_ms: u64) -> bool {
        let horizon_ms = topology.horizon_ms(now_ms);
        // A stream younger than its retention began with the shards that have no parents. Comparing
        // times alone would miss those that were resharded in the millisecond they were created.
        let young = topology.shards.first().is_some_and(|first| first.shard.born_ms >= horizon_ms);
        match self {
            Self::All => true,
            Self::After(id) => state.shard.id.as_str() > id.as_str(),
            Self::Open => state.is_open(),
            Self::OpenAt(at) => open_at(state, *at),
            Self::OpenAtHorizon if young => state.shard.parents.is_empty(),
            Self::OpenAtHorizon => open_at(state, horizon_ms),
            Self::OpenSince(at) => open_since(state, *at),
            Self::OpenSinceHorizon => young || open_since(state, horizon_ms),
        }
    }
}

/// Returns true if the shard was open at a time. Its lifetime includes the time of its opening and
/// excludes the time of its closing: at the time of a split the children are open and the parent is
/// not.
fn open_at(state: &ShardState, at_ms: u64) -> bool {
    state.shard.born_ms <= at_ms && open_since(state, at_ms)
}

fn open_since(state: &ShardState, at_ms: u64) -> bool {
    state.closed_ms.is_none_or(|closed| closed > at_ms)
}
