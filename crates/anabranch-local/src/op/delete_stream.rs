//! `DeleteStream`: deletes a stream. It is DELETING for `delete_delay_ms` and then no longer
//! exists. Its data is unreadable at once.

use crate::change::ChangeKind;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::lifecycle::Status;
use crate::op::{Operation, StreamTarget};
use serde::Deserialize;

/// Request of `DeleteStream`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    pub enforce_consumer_deletion: Option<bool>,
}

impl Engine {
    /// Deletes a stream. Does nothing if the stream is already being deleted.
    pub fn delete_stream(&self, request: &Request) -> Result<(), ApiError> {
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        let enforced = request.enforce_consumer_deletion == Some(true);
        self.run(Operation::DeleteStream, Some(&name), || {
            self.change_stream(&name, |scene| {
                if scene.status == Status::Deleting {
                    return Ok(None);
                }
                if !enforced && scene.topology.present_consumers(scene.now_ms).next().is_some() {
                    return Err(ApiError::in_use(format!(
                        "Stream {name} under account {} has registered consumers. Deregister them \
                         first, or set EnforceConsumerDeletion.",
                        self.home.account
                    )));
                }
                Ok(Some(ChangeKind::Delete {
                    until_ms: scene.now_ms.saturating_add(self.options().delete_delay_ms),
                }))
            })
        })
    }
}
