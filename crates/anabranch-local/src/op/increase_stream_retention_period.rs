//! `IncreaseStreamRetentionPeriod`: lengthens the retention period.

use crate::engine::Engine;
use crate::error::ApiError;
pub use crate::op::retention::Request;
use crate::op::retention::RetentionChange;

impl Engine {
    /// Lengthens the retention period.
    pub fn increase_stream_retention_period(&self, request: &Request) -> Result<(), ApiError> {
        self.retain(RetentionChange::Longer, request)
    }
}
