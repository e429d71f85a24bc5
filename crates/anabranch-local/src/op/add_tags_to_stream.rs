//! `AddTagsToStream`: sets tags of a stream.

use crate::change::ChangeKind;
use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::{Operation, StreamTarget, tags};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Request of `AddTagsToStream`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    pub tags: Option<BTreeMap<String, String>>,
}

impl Engine {
    /// Sets tags of a stream. A tag that exists gets the new value.
    pub fn add_tags_to_stream(&self, request: &Request) -> Result<(), ApiError> {
        Constraints::new().present(request.tags.as_ref(), "tags").check()?;
        let tags = request.tags.clone().unwrap_or_default();
        tags::check(&tags)?;
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        self.run(Operation::AddTagsToStream, Some(&name), || {
            self.change_stream(&name, |scene| {
                tags::check_count(&name, &self.home.account, &scene.topology.tags, &tags)?;
                Ok(Some(ChangeKind::Tag { tags }))
            })
        })
    }
}
