//! `UpdateMaxRecordSize`: changes the maximum record size, from 1 MiB to 10 MiB.

use crate::change::ChangeKind;
use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::create_stream::RECORD_MAX_KIB;
use crate::op::{Operation, StreamTarget};
use serde::Deserialize;

/// Request of `UpdateMaxRecordSize`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    #[serde(rename = "MaxRecordSizeInKiB")]
    pub max_record_size_in_kib: Option<i64>,
}

impl Engine {
    /// Changes the maximum record size of a stream.
    pub fn update_max_record_size(&self, request: &Request) -> Result<(), ApiError> {
        let (least, most) = RECORD_MAX_KIB;
        Constraints::new()
            .present(request.max_record_size_in_kib.as_ref(), "maxRecordSizeInKiB")
            .within(request.max_record_size_in_kib, "maxRecordSizeInKiB", least, most)
            .check()?;
        let kib = request.max_record_size_in_kib.and_then(|kib| u32::try_from(kib).ok());
        let kib = kib.ok_or_else(ApiError::internal)?;
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        self.run(Operation::UpdateMaxRecordSize, Some(&name), || {
            self.change_stream(&name, |scene| {
                self.require_active(scene)?;
                let until_ms = scene.now_ms.saturating_add(self.options().update_delay_ms);
                Ok(Some(ChangeKind::RecordMax { kib, until_ms }))
            })
        })
    }
}
