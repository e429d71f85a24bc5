//! `DecreaseStreamRetentionPeriod`: shortens the retention period. Records past it become
//! unreadable at once.

use crate::engine::Engine;
use crate::error::ApiError;
pub use crate::op::retention::Request;
use crate::op::retention::RetentionChange;

impl Engine {
    /// Shortens the retention period.
    pub fn decrease_stream_retention_period(&self, request: &Request) -> Result<(), ApiError> {
        self.retain(RetentionChange::Shorter, request)
    }
}
