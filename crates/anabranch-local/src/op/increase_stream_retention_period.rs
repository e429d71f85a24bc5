//! `IncreaseStreamRetentionPeriod`: records are kept longer.

use crate::engine::Engine;
use crate::error::ApiError;
pub use crate::op::retention::Request;
use crate::op::retention::RetentionChange;

impl Engine {
    /// Keeps records longer.
    pub fn increase_stream_retention_period(&self, request: &Request) -> Result<(), ApiError> {
        self.retain(RetentionChange::Longer, request)
    }
}
