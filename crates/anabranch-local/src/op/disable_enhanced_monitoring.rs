//! `DisableEnhancedMonitoring`: switches shard-level metrics off. The setting is kept and shown,
//! but nothing is measured.

use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::Operation;
pub use crate::op::monitoring::{Reply, Request};

impl Engine {
    /// Switches shard-level metrics off.
    pub fn disable_enhanced_monitoring(&self, request: &Request) -> Result<Reply, ApiError> {
        self.monitor(Operation::DisableEnhancedMonitoring, request, |current, asked| {
            current.difference(asked).cloned().collect()
        })
    }
}
