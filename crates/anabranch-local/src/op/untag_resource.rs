//! `UntagResource`: removes tags from a stream or consumer. A key without a tag is not an error.

use crate::change::ChangeKind;
use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::{Operation, tags};
use serde::Deserialize;

/// Request of `UntagResource`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(rename = "ResourceARN")]
    pub resource_arn: Option<String>,
    pub tag_keys: Option<Vec<String>>,
}

impl Engine {
    /// Removes tags from a stream or consumer.
    pub fn untag_resource(&self, request: &Request) -> Result<(), ApiError> {
        Constraints::new()
            .present(request.tag_keys.as_ref(), "tagKeys")
            .present(request.resource_arn.as_ref(), "resourceARN")
            .check()?;
        let keys = request.tag_keys.clone().unwrap_or_default();
        keys.iter().try_for_each(|key| tags::check_key(key))?;
        let resource = self.resource(request.resource_arn.as_deref().unwrap_or_default())?;
        let name = resource.stream;
        self.run(Operation::UntagResource, Some(name), || {
            self.change_stream(name, |scene| {
                resource.tags(scene.topology, scene.now_ms)?;
                let keys = keys.into_iter().collect();
                Ok(Some(match resource.consumer_name(scene.topology) {
                    None => ChangeKind::Untag { keys },
                    Some(name) => ChangeKind::UntagConsumer { name, keys },
                }))
            })
        })
    }
}
