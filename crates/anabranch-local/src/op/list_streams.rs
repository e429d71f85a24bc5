//! `ListStreams`: the streams by name, page by page. Also the pagination tokens of all list
//! operations.

use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::lifecycle::Status;
use crate::op::{Operation, StreamModeDetails, Timestamp};
use crate::token::ListToken;
use serde::{Deserialize, Serialize};

/// Number of streams on a page if the request names no limit.
const DEFAULT_LIMIT: i64 = 100;

/// Request of `ListStreams`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    pub limit: Option<i64>,
    pub exclusive_start_stream_name: Option<String>,
    pub next_token: Option<String>,
}

/// Reply to `ListStreams`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Reply {
    pub stream_names: Vec<String>,
    pub has_more_streams: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
    pub stream_summaries: Vec<ListedStream>,
}

/// A stream in a list.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct ListedStream {
    pub stream_name: String,
    #[serde(rename = "StreamARN")]
    pub stream_arn: String,
    pub stream_status: Status,
    pub stream_mode_details: StreamModeDetails,
    pub stream_creation_timestamp: Timestamp,
}

impl Engine {
    /// Lists the streams.
    pub fn list_streams(&self, request: &Request) -> Result<Reply, ApiError> {
        let start = request.exclusive_start_stream_name.as_deref();
        Constraints::new()
            .within(request.limit, "limit", 1, 10_000)
            .optional_name(start, "exclusiveStartStreamName")
            .length(request.next_token.as_deref(), "nextToken", 1, 1_048_576)
            .check()?;
        let after = match &request.next_token {
            None => start.map(str::to_owned),
            Some(token) => Some(self.list_token(Operation::ListStreams, token)?),
        };
        let limit = usize::try_from(request.limit.unwrap_or(DEFAULT_LIMIT)).unwrap_or(1);
        self.run(Operation::ListStreams, None, || {
            let streams = self.present_streams();
            let mut rest = streams.iter().filter(|(stream, _)| {
                after.as_deref().is_none_or(|after| stream.name.as_str() > after)
            });
            let page = rest.by_ref().take(limit).map(|(stream, status)| ListedStream {
                stream_name: stream.name.clone(),
                stream_arn: stream.arn.clone(),
                stream_status: *status,
                stream_mode_details: stream.read().mode.into(),
                stream_creation_timestamp: Timestamp(stream.created_ms),
            });
            let stream_summaries: Vec<_> = page.collect();
            let has_more_streams = rest.next().is_some();
            let last = stream_summaries.last().filter(|_| has_more_streams);
            Ok(Reply {
                next_token: last
                    .map(|last| self.new_list_token(Operation::ListStreams, &last.stream_name)),
                stream_names: stream_summaries.iter().map(|s| s.stream_name.clone()).collect(),
                has_more_streams,
                stream_summaries,
            })
        })
    }

    /// Returns the state in a pagination token. Returns an error if the token is too old or belongs
    /// to another operation.
    pub(crate) fn list_token(&self, of: Operation, token: &str) -> Result<String, ApiError> {
        let token =
            ListToken::from_text(token).ok_or_else(|| ApiError::invalid("Invalid NextToken."))?;
        let age = self.now_ms().saturating_sub(token.issued_ms);
        if age > self.options().list_token_ttl_ms {
            let text = "The pagination token passed to the operation is expired.";
            return Err(ApiError::new(crate::ErrorKind::ExpiredNextToken, text));
        }
        let state = token.state.strip_prefix(of.name()).and_then(|rest| rest.strip_prefix(':'));
        state.map(str::to_owned).ok_or_else(|| ApiError::invalid("Invalid NextToken."))
    }

    /// Creates a pagination token that carries `state`.
    pub(crate) fn new_list_token(&self, of: Operation, state: &str) -> String {
        let state = format!("{of}:{state}");
        ListToken { issued_ms: self.now_ms(), state }.to_text()
    }
}
