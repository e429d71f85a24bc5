//! `EnableEnhancedMonitoring`: switches shard-level metrics on. The setting is kept and shown, but
//! nothing is measured.

use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::Operation;
pub use crate::op::monitoring::{Reply, Request};

impl Engine {
    /// Switches shard-level metrics on.
    pub fn enable_enhanced_monitoring(&self, request: &Request) -> Result<Reply, ApiError> {
        self.monitor(Operation::EnableEnhancedMonitoring, request, |current, asked| {
            current.union(asked).cloned().collect()
        })
    }
}
