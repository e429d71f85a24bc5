//! `StartStreamEncryption`: switches server-side encryption on.
//!
//! Differs from AWS: nothing is encrypted, and the key is not looked up.

use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::Operation;
pub use crate::op::stream_encryption::Request;

impl Engine {
    /// Switches server-side encryption on.
    pub fn start_stream_encryption(&self, request: &Request) -> Result<(), ApiError> {
        self.encrypt(Operation::StartStreamEncryption, request, |key_id| key_id.map(str::to_owned))
    }
}
