//! `RemoveTagsFromStream`: removes tags from a stream. A key without a tag is not an error.

use crate::change::ChangeKind;
use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::{Operation, StreamTarget, tags};
use serde::Deserialize;

/// Request of `RemoveTagsFromStream`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    pub tag_keys: Option<Vec<String>>,
}

impl Engine {
    /// Removes tags from a stream.
    pub fn remove_tags_from_stream(&self, request: &Request) -> Result<(), ApiError> {
        Constraints::new().present(request.tag_keys.as_ref(), "tagKeys").check()?;
        let keys = request.tag_keys.clone().unwrap_or_default();
        keys.iter().try_for_each(|key| tags::check_key(key))?;
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        self.run(Operation::RemoveTagsFromStream, Some(&name), || {
            let keys = keys.into_iter().collect();
            self.change_stream(&name, |_| Ok(Some(ChangeKind::Untag { keys })))
        })
    }
}
