//! `DecreaseStreamRetentionPeriod`: records are kept for a shorter time; what is past it is out of reach at once.

use crate::engine::Engine;
use crate::error::ApiError;
pub use crate::op::retention::Request;
use crate::op::retention::RetentionChange;

impl Engine {
    /// Keeps records for a shorter time.
    pub fn decrease_stream_retention_period(&self, request: &Request) -> Result<(), ApiError> {
        self.retain(RetentionChange::Shorter, request)
    }
}
