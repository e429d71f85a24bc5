//! `ListTagsForResource`: the tags of a stream or consumer.

use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::Operation;
use crate::op::tags::Tag;
use serde::{Deserialize, Serialize};

/// Request of `ListTagsForResource`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(rename = "ResourceARN")]
    pub resource_arn: Option<String>,
}

/// Reply to `ListTagsForResource`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Reply {
    pub tags: Vec<Tag>,
}

impl Engine {
    /// Lists the tags of a stream or consumer.
    pub fn list_tags_for_resource(&self, request: &Request) -> Result<Reply, ApiError> {
        Constraints::new().present(request.resource_arn.as_ref(), "resourceARN").check()?;
        let resource = self.resource(request.resource_arn.as_deref().unwrap_or_default())?;
        self.run(Operation::ListTagsForResource, Some(resource.stream), || {
            let stream = self.find_by_name(resource.stream)?;
            let topology = stream.read();
            let tags = resource.tags(&topology, self.now_ms())?;
            Ok(Reply { tags: tags.iter().map(Tag::from).collect() })
        })
    }
}
