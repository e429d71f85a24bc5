//! `IncreaseStreamRetentionPeriod`: records are kept longer.

use crate::change::What;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::{Operation, StreamTarget, retention};
use serde::Deserialize;

/// A request.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Request {
    #[serde(flatten)]
    pub stream: StreamTarget,
    pub retention_period_hours: Option<i64>,
}

impl Engine {
    /// Keeps records longer.
    pub fn increase_stream_retention_period(&self, request: &Request) -> Result<(), ApiError> {
        let hours = retention::check(request.retention_period_hours)?;
        let target = request.stream.as_ref();
        let name = self.resolve(&target)?;
        self.run(Operation::IncreaseStreamRetentionPeriod, Some(&name), || {
            self.change_stream(&name, |scene| {
                let current = scene.topology.retention_hours;
                if hours < current {
                    return Err(ApiError::invalid(format!(
                        "Requested retention period ({hours} hours) for stream {name} can not be \
                         shorter than existing retention period ({current} hours). Use \
                         DecreaseRetentionPeriod API."
                    )));
                }
                Ok((hours != current).then_some(What::Retain { hours }))
            })
        })
    }
}
