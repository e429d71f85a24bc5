//! The shared part of switching server-side encryption on and off.

use crate::change::ChangeKind;
use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::{Operation, StreamTarget};
use serde::Deserialize;

/// Request of `StartStreamEncryption` and `StopStreamEncryption`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    pub encryption_type: Option<String>,
    pub key_id: Option<String>,
}

impl Engine {
    /// Changes the encryption of a stream. `change` maps the key of the request to the new one.
    pub(crate) fn encrypt(
        &self,
        operation: Operation,
        request: &Request,
        change: impl FnOnce(Option<&str>) -> Option<String>,
    ) -> Result<(), ApiError> {
        let (kind, key_id) = (request.encryption_type.as_deref(), request.key_id.as_deref());
        Constraints::new()
            .present(kind.as_ref(), "encryptionType")
            .one_of(kind, "encryptionType", &["NONE", "KMS"])
            .present(key_id.as_ref(), "keyId")
            .length(key_id, "keyId", 1, 2048)
            .check()?;
        if kind == Some("NONE") {
            return Err(ApiError::invalid("EncryptionType must be KMS."));
        }
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        self.run(operation, Some(&name), || {
            self.change_stream(&name, |scene| {
                self.require_active(scene)?;
                let until_ms = scene.now_ms.saturating_add(self.options().update_delay_ms);
                Ok(Some(ChangeKind::Encrypt { key_id: change(key_id), until_ms }))
            })
        })
    }
}
