//! `TagResource`: sets tags of a stream or consumer.

use crate::change::ChangeKind;
use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::{Operation, tags};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Request of `TagResource`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(rename = "ResourceARN")]
    pub resource_arn: Option<String>,
    pub tags: Option<BTreeMap<String, String>>,
}

impl Engine {
    /// Sets tags of a stream or consumer. A tag that exists gets the new value.
    pub fn tag_resource(&self, request: &Request) -> Result<(), ApiError> {
        Constraints::new()
            .present(request.tags.as_ref(), "tags")
            .present(request.resource_arn.as_ref(), "resourceARN")
            .check()?;
        let tags = request.tags.clone().unwrap_or_default();
        tags::check(&tags)?;
        let resource = self.resource(request.resource_arn.as_deref().unwrap_or_default())?;
        let name = resource.stream;
        self.run(Operation::TagResource, Some(name), || {
            self.change_stream(name, |scene| {
                let have = resource.tags(scene.topology, scene.now_ms)?;
                tags::check_count(name, &self.home.account, have, &tags)?;
                Ok(Some(match resource.consumer_name(scene.topology) {
                    None => ChangeKind::Tag { tags },
                    Some(name) => ChangeKind::TagConsumer { name, tags },
                }))
            })
        })
    }
}
