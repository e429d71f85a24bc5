//! `StopStreamEncryption`: switches server-side encryption off.
//!
//! Differs from AWS: nothing is encrypted, and the key is not looked up.

use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::Operation;
pub use crate::op::stream_encryption::Request;

impl Engine {
    /// Switches server-side encryption off.
    pub fn stop_stream_encryption(&self, request: &Request) -> Result<(), ApiError> {
        self.encrypt(Operation::StopStreamEncryption, request, |_| None)
    }
}
