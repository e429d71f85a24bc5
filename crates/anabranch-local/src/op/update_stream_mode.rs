//! `UpdateStreamMode`: switches between provisioned and on-demand capacity.
//!
//! Differs from AWS: the number of shards does not change.

use crate::change::ChangeKind;
use crate::constraint::Constraints;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::{Operation, StreamModeDetails, StreamTarget};
use serde::Deserialize;

/// Request of `UpdateStreamMode`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    pub stream_mode_details: Option<StreamModeDetails>,
}

impl Engine {
    /// Changes the capacity mode.
    pub fn update_stream_mode(&self, request: &Request) -> Result<(), ApiError> {
        let details = request.stream_mode_details.as_ref();
        let mode = details.map(|details| details.stream_mode.as_str());
        Constraints::new()
            .present(details, "streamModeDetails")
            .one_of(mode, "streamModeDetails.streamMode", &["PROVISIONED", "ON_DEMAND"])
            .check()?;
        let mode = details.and_then(StreamModeDetails::mode).ok_or_else(ApiError::internal)?;
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        self.run(Operation::UpdateStreamMode, Some(&name), || {
            self.change_stream(&name, |scene| {
                self.require_active(scene)?;
                let until_ms = scene.now_ms.saturating_add(self.options().update_delay_ms);
                Ok((scene.topology.mode != mode).then_some(ChangeKind::Mode { mode, until_ms }))
            })
        })
    }
}
