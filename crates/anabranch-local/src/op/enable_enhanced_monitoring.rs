//! `EnableEnhancedMonitoring`: shard-level metrics on. None are measured; the setting is kept and shown.

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
