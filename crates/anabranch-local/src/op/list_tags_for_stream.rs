//! `ListTagsForStream`: the tags of a stream, page by page.

use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::tags::Tag;
use crate::op::{Operation, StreamTarget};
use serde::{Deserialize, Serialize};

/// Number of tags on a page if the request names no limit.
const DEFAULT_LIMIT: i64 = 50;

/// Request of `ListTagsForStream`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    pub exclusive_start_tag_key: Option<String>,
    pub limit: Option<i64>,
}

/// Reply to `ListTagsForStream`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Reply {
    pub tags: Vec<Tag>,
    pub has_more_tags: bool,
}

impl Engine {
    /// Lists the tags of a stream.
    pub fn list_tags_for_stream(&self, request: &Request) -> Result<Reply, ApiError> {
        let after = request.exclusive_start_tag_key.as_deref();
        Constraints::new()
            .within(request.limit, "limit", 1, 50)
            .length(after, "exclusiveStartTagKey", 1, 128)
            .check()?;
        let limit = usize::try_from(request.limit.unwrap_or(DEFAULT_LIMIT)).unwrap_or(1);
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        self.run(Operation::ListTagsForStream, Some(&name), || {
            let stream = self.find_by_name(&name)?;
            let topology = stream.read();
            let all = topology.tags.iter();
            let mut rest = all.filter(|(key, _)| after.is_none_or(|after| key.as_str() > after));
            let tags = rest.by_ref().take(limit).map(Tag::from).collect();
            Ok(Reply { tags, has_more_tags: rest.next().is_some() })
        })
    }
}
